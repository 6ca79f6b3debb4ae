"use strict";
// Tables sort by a click on a head and keep only the rows that hold the filter's words.
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.v;
    if (number === undefined) return cell.textContent.toLowerCase();
    return number === "inf" ? Infinity : Number(number);
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === "number" ? -1 : 1;
  };
  for (const table of document.querySelectorAll("table[data-table]")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const original = [...body.rows];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const isText = head.classList.contains("text");
        const first = isText ? "ascending" : "descending";
        const second = isText ? "descending" : "ascending";
        const next = before === "none" ? first : before === first ? second : "none";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        const rows = original.slice();
        if (next !== "none") {
          const keys = new Map(rows.map((row) => [row, value(row, column)]));
          const sign = next === "ascending" ? 1 : -1;
          rows.sort((a, b) => sign * compare(keys.get(a), keys.get(b)));
        }
        body.append(...rows);
      });
    });
  }
  for (const input of document.querySelectorAll("input[data-filter]")) {
    const key = input.dataset.filter;
    const rows = [...document.querySelector(`table[data-table="${key}"]`).tBodies[0].rows];
    const texts = rows.map((row) =>
      [...row.cells].map((cell) => `${cell.textContent} ${cell.title}`).join(" ").toLowerCase());
    const count = document.querySelector(`[data-count="${key}"]`);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let kept = 0;
      rows.forEach((row, i) => {
        const shown = words.every((word) => texts[i].includes(word));
        row.hidden = !shown;
        kept += shown;
      });
      count.textContent = kept === rows.length ? `${kept} ${kept === 1 ? "row" : "rows"}` : `${kept} of ${rows.length} rows`;
    });
  }
})();
