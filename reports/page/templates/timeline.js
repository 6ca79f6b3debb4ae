"use strict";
// Blocks in the slots of SMs over time. Only what is in view is drawn, and of blocks narrower
// than a pixel only one a pixel, so that a hundred thousand blocks move with the wheel.
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const canvas = document.getElementById("timeline-canvas");
  const pen = canvas.getContext("2d");
  const tip = document.getElementById("timeline-tip");
  const details = document.getElementById("timeline-details");
  const status = document.getElementById("timeline-status");
  const pickSchedule = document.getElementById("timeline-schedule");
  const pickColour = document.getElementById("timeline-colour");
  const legend = document.getElementById("timeline-legend");
  const LEFT = 52, BOTTOM = 22, TICKS = 2 ** 32 - 1, LISTED = 40, LINES = 400, NAMED = 26;
  const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7", "#5c6b7a",
    "#7fb8d8", "#a66f00", "#66c2a5", "#2b5f8a", "#f0b08a", "#8a4f72"];
  const OTHERS = "#97a1aa";
  const LIGHT = { ink: "#1c2733", quiet: "#5a6774", line: "#d5dce3", chosen: "#d00000", arrow: "#7a3b00" };
  let ink = LIGHT, printing = false;
  const takeColours = () => {
    const style = getComputedStyle(canvas);
    ink = printing ? LIGHT : Object.fromEntries(
      Object.keys(LIGHT).map((name) => [name, style.getPropertyValue(`--${name}`).trim() || LIGHT[name]]));
  };

  const unpack = (text, Type) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Type(bytes.buffer);
  };
  const offsets = (sizes) => {
    const result = new Uint32Array(sizes.length + 1);
    for (let i = 0; i < sizes.length; i++) result[i + 1] = result[i] + sizes[i];
    return result;
  };

  // Which operation a block belongs to: the last one that begins at or before it.
  const operationOf = (block) => {
    let low = 0, high = data.operations.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (data.operations[middle].first <= block) low = middle; else high = middle;
    }
    return low;
  };
  const functions = new Map();
  const functionOf = data.operations.map((o) => {
    if (!functions.has(o.name)) functions.set(o.name, functions.size);
    return functions.get(o.name);
  });
  const colourOf = (o, byFunction) => {
    if (!byFunction) return PALETTE[o % PALETTE.length];
    const number = functionOf[o];
    return number < PALETTE.length || functions.size === PALETTE.length + 1 ? PALETTE[number % PALETTE.length] : OTHERS;
  };
  const operation = new Uint32Array(data.blocks);
  for (let b = 0, o = 0; b < data.blocks; b++) {
    while (o + 1 < data.operations.length && data.operations[o + 1].first <= b) o++;
    operation[b] = o;
  }
  const label = (block) => {
    const o = data.operations[operationOf(block)];
    return o.kernel < 0 ? o.name : `${o.kernel}:${block - o.first}`;
  };

  const graph = data.graph && {
    setOffsets: offsets(unpack(data.graph.setSizes, Uint32Array)),
    setBlocks: unpack(data.graph.setBlocks, Uint32Array),
    kind: unpack(data.graph.kind, Uint8Array),
    sourceOffsets: offsets(unpack(data.graph.sourceSizes, Uint32Array)),
    sources: unpack(data.graph.sources, Uint32Array),
    targetOffsets: offsets(unpack(data.graph.targetSizes, Uint32Array)),
    targets: unpack(data.graph.targets, Uint32Array),
  };
  const neighbours = (block, ownOffsets, own, otherOffsets, others) => {
    const inSet = new Uint8Array(graph.setOffsets.length - 1);
    for (let s = 0; s < inSet.length; s++) {
      for (let i = graph.setOffsets[s]; i < graph.setOffsets[s + 1]; i++) {
        if (graph.setBlocks[i] === block) { inSet[s] = 1; break; }
      }
    }
    const found = new Map();
    for (let j = 0; j < graph.kind.length; j++) {
      let member = false;
      for (let i = ownOffsets[j]; i < ownOffsets[j + 1] && !member; i++) {
        member = inSet[own[i]] === 1;
      }
      if (!member) continue;
      for (let i = otherOffsets[j]; i < otherOffsets[j + 1]; i++) {
        for (let k = graph.setOffsets[others[i]]; k < graph.setOffsets[others[i] + 1]; k++) {
          const other = graph.setBlocks[k];
          found.set(other, (found.get(other) || 0) | (1 << graph.kind[j]));
        }
      }
    }
    return found;
  };
  const predecessors = (block) =>
    neighbours(block, graph.targetOffsets, graph.targets, graph.sourceOffsets, graph.sources);
  const successors = (block) =>
    neighbours(block, graph.sourceOffsets, graph.sources, graph.targetOffsets, graph.targets);

  const prepared = new Map();
  const schedule = () => {
    const index = Number(pickSchedule.value);
    if (!prepared.has(index)) prepared.set(index, prepare(data.schedules[index]));
    return prepared.get(index);
  };
  const prepare = (packed) => {
    const start = unpack(packed.start, Uint32Array), end = unpack(packed.end, Uint32Array);
    const run = packed.run ? unpack(packed.run, Uint32Array) : start;
    const sm = unpack(packed.sm, Int32Array), slot = unpack(packed.slot, Uint16Array);
    const slots = new Uint16Array(data.sms).fill(1);
    const lanes = Array.from({ length: data.sms }, () => []);
    for (let b = 0; b < data.blocks; b++) {
      if (sm[b] < 0 || sm[b] >= data.sms || data.operations[operation[b]].kernel < 0) continue;
      const lane = lanes[sm[b]];
      (lane[slot[b]] ||= []).push(b);
      if (slot[b] >= slots[sm[b]]) slots[sm[b]] = slot[b] + 1;
    }
    for (const sm of lanes) for (const lane of sm) if (lane) lane.sort((a, b) => start[a] - start[b]);
    // SMs that stay empty are folded away: what is drawn are rows.
    const used = [...lanes.keys()].filter((i) => lanes[i].length);
    const rowOf = new Int32Array(data.sms).fill(-1);
    used.forEach((i, row) => { rowOf[i] = row; });
    // On the axis of serialized launches, the first: what is shorter ends before its end.
    const shown = Math.max(packed.makespan, data.schedules[0].makespan);
    const last = Math.max(200, Math.min(TICKS, (shown / data.longest) * TICKS));
    return { name: packed.name, makespan: packed.makespan, start, run, end, sm, slot, slots, lanes, used, rowOf, last };
  };

  const whole = () => ({ t0: 0, t1: schedule().last, s0: 0, s1: Math.max(1, schedule().used.length) });
  let view = null, lit = null;
  let chosen = -1, before = new Map(), after = new Map();
  let width = 0, height = 0;

  const x = (t) => LEFT + ((t - view.t0) / (view.t1 - view.t0)) * (width - LEFT);
  const y = (s) => ((s - view.s0) / (view.s1 - view.s0)) * (height - BOTTOM);
  const time = (t) => (t / TICKS) * data.longest;
  const show = (number) => {
    if (number === 0) return "0";
    const digits = Math.abs(number) >= 1000 ? 0 : Math.max(0, 3 - Math.floor(Math.log10(Math.abs(number))));
    const text = number.toFixed(Math.min(digits, 6));
    return digits ? text.replace(/\.?0+$/, "") : text;
  };
  const place = (s, b) => {
    const sm = s.sm[b], row = s.rowOf[sm], share = 1 / s.slots[sm], top = y(row + s.slot[b] * share);
    return [x(s.start[b]), top, Math.max(1, x(s.end[b]) - x(s.start[b])), Math.max(1, y(row + (s.slot[b] + 1) * share) - top)];
  };
  const placeRun = (s, b) => {
    const [left, top, w, h] = place(s, b), from = Math.min(Math.max(x(s.run[b]), left), left + w);
    return [from, top, Math.max(1, left + w - from), h];
  };
  const isDrawn = (s, b) => b < data.blocks && s.sm[b] >= 0 && data.operations[operation[b]].kernel >= 0;
  const firstVisible = (s, lane) => {
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (s.end[lane[middle]] < view.t0) low = middle + 1; else high = middle;
    }
    return low;
  };

  const draw = () => {
    const s = schedule(), scale = window.devicePixelRatio || 1, boxes = new Map();
    takeColours();
    width = canvas.clientWidth; height = canvas.clientHeight;
    if (canvas.width !== width * scale || canvas.height !== height * scale) {
      canvas.width = width * scale; canvas.height = height * scale;
    }
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, height - BOTTOM);
    pen.clip();
    const pixel = (view.t1 - view.t0) / (width - LEFT);
    const byFunction = pickColour.value === "function";
    let drawn = 0;
    for (let row = Math.max(0, Math.floor(view.s0)); row < Math.min(s.used.length, Math.ceil(view.s1)); row++) {
      for (const lane of s.lanes[s.used[row]]) {
        if (!lane) continue;
        let covered = -1;
        for (let i = firstVisible(s, lane); i < lane.length; i++) {
          const b = lane[i];
          if (s.start[b] > view.t1) break;
          if (s.end[b] <= covered) continue;
          const [left, top, w, h] = place(s, b);
          covered = Math.max(s.end[b], s.start[b] + pixel);
          const o = operation[b];
          pen.globalAlpha = chosen >= 0 || (lit && !lit(o)) ? 0.25 : 1;
          pen.fillStyle = colourOf(o, byFunction);
          const high = h > 4 ? h - 0.7 : h;
          if (s.run[b] > s.start[b]) {
            // The slot is held, the block waits in it: a thin line.
            const from = Math.min(x(s.run[b]), left + w);
            pen.fillRect(left, top + high * 0.4, from - left, Math.max(1, high * 0.2));
            pen.fillRect(from, top, Math.max(1, left + w - from), high);
            grow(boxes, o, from, top, left + w, top + h);
          } else {
            pen.fillRect(left, top, w > 4 ? w - 0.7 : w, high);
            grow(boxes, o, left, top, left + w, top + h);
          }
          drawn++;
        }
      }
    }
    pen.globalAlpha = 1;
    if (chosen >= 0) drawChosen(s); else drawNames(boxes);
    const end = x((s.makespan / data.longest) * TICKS);
    pen.globalAlpha = 0.3;
    pen.fillStyle = ink.line;
    pen.fillRect(end, 0, width, height);
    pen.globalAlpha = 1;
    pen.setLineDash([4, 3]);
    pen.strokeStyle = ink.ink;
    pen.beginPath(); pen.moveTo(end, 0); pen.lineTo(end, height); pen.stroke();
    pen.restore();
    drawAxes();
    const idle = data.sms - s.used.length;
    status.textContent = `${show(time(view.t0))} to ${show(time(view.t1))} ${data.unit}, ${drawn} blocks drawn${idle ? `, ${idle} of ${data.sms} SMs stay empty` : ""}`;
    canvas.setAttribute("aria-label", `${s.name}: ${data.blocks} blocks of ${data.operations.length} kernels on ${s.used.length} of ${data.sms} SMs, ends at ${show(s.makespan)} ${data.unit}`);
  };
  // The largest rectangle that blocks of one kernel fill together has room for its name.
  const grow = (boxes, o, left, top, right, bottom) => {
    const box = boxes.get(o), gap = Math.max(1.5, y(1) - y(0));
    if (box && Math.abs(box.left - left) < 2 && Math.abs(box.right - right) < 2 && top <= box.bottom + gap) {
      box.bottom = Math.max(box.bottom, bottom);
    } else if (!box || (right - left) * (bottom - top) > (box.right - box.left) * (box.bottom - box.top)) {
      boxes.set(o, { left, top, right, bottom });
    }
  };
  const drawNames = (boxes) => {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.lineJoin = "round";
    for (const [o, box] of boxes) {
      const left = Math.max(box.left, LEFT) + 3, room = Math.min(box.right, width) - left - 2;
      if (box.bottom - box.top < 11 || room < 8 || (lit && !lit(o))) continue;
      const { kernel, name } = data.operations[o];
      const whole = `${kernel} ${name}`, least = String(kernel).length + 4;
      const fits = (candidate) => pen.measureText(candidate).width <= room;
      let text = whole;
      for (let n = whole.length - 1; n > least && !fits(text); n--) text = `${whole.slice(0, n)}…`;
      if (!fits(text)) text = String(kernel);
      if (!fits(text)) continue;
      const middle = (Math.max(box.top, 0) + Math.min(box.bottom, height - BOTTOM)) / 2;
      pen.strokeStyle = "#000b";
      pen.lineWidth = 2.5;
      pen.strokeText(text, left, middle);
      pen.fillStyle = "#fff";
      pen.fillText(text, left, middle);
    }
  };
  const drawChosen = (s) => {
    const boxed = (b, fill, edge) => {
      if (!isDrawn(s, b)) return;
      const [left, top, w, h] = placeRun(s, b);
      const wide = Math.max(w, 3), high = Math.max(h, 3);
      pen.fillStyle = fill;
      pen.fillRect(left, top, wide, high);
      pen.strokeStyle = ink.ink;
      pen.lineWidth = edge;
      pen.strokeRect(left, top, wide, high);
    };
    for (const b of after.keys()) boxed(b, "#56b4e9", 0.5);
    for (const b of before.keys()) boxed(b, "#e69f00", 0.8);
    boxed(chosen, ink.chosen, 2);
    if (!isDrawn(s, chosen)) return;
    const [left, top, , h] = placeRun(s, chosen);
    pen.strokeStyle = ink.arrow;
    pen.lineWidth = 0.8;
    let lines = 0;
    for (const b of before.keys()) {
      if (!isDrawn(s, b) || lines++ >= LINES) continue;
      const [l, t, w, hh] = placeRun(s, b);
      pen.beginPath();
      pen.moveTo(l + w, t + hh / 2);
      pen.lineTo(left, top + h / 2);
      pen.stroke();
    }
  };
  const drawAxes = () => {
    const { used } = schedule();
    pen.fillStyle = ink.quiet;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const span = view.s1 - view.s0, step = Math.max(1, Math.ceil((span * 16) / (height - BOTTOM)));
    for (let row = Math.ceil(view.s0 / step) * step; row < Math.min(view.s1, used.length); row += step) {
      const at = y(row + 0.5);
      if (at > 5 && at < height - BOTTOM - 3) pen.fillText(`SM ${used[row]}`, LEFT - 5, at);
    }
    const from = time(view.t0), to = time(view.t1);
    let tick = 10 ** Math.floor(Math.log10((to - from) / 4 || 1));
    for (const factor of [5, 2]) if ((to - from) / (tick * factor) >= 4) { tick *= factor; break; }
    pen.textAlign = "center";
    pen.strokeStyle = ink.line;
    for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
      const at = LEFT + ((t - from) / (to - from)) * (width - LEFT);
      pen.beginPath(); pen.moveTo(at, height - BOTTOM); pen.lineTo(at, height - BOTTOM + 4); pen.stroke();
      if (at < width - 25) pen.fillText(show(Number(t.toPrecision(9))), at, height - BOTTOM / 2);
    }
    pen.textAlign = "left";
    pen.fillText(data.unit.length > 6 ? "instr." : data.unit, 3, height - BOTTOM / 2);
  };

  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };

  const blockAt = (px, py) => {
    const s = schedule();
    if (px < LEFT || py > height - BOTTOM) return -1;
    const pixel = (view.t1 - view.t0) / (width - LEFT);
    const t = view.t0 + (px - LEFT) * pixel;
    const at = view.s0 + (py / (height - BOTTOM)) * (view.s1 - view.s0), row = Math.floor(at);
    if (row < 0 || row >= s.used.length) return -1;
    const sm = s.used[row], lane = s.lanes[sm][Math.floor((at - row) * s.slots[sm])];
    if (!lane) return -1;
    for (let i = firstVisible(s, lane); i < lane.length && s.start[lane[i]] <= t + 2 * pixel; i++) {
      if (s.end[lane[i]] >= t - 2 * pixel) return lane[i];
    }
    return -1;
  };

  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const listed = (title, found, s) => {
    const line = element("div", `${title} ${found.size} block${found.size === 1 ? "" : "s"}${found.size ? ": " : "."}`);
    const order = [...found.keys()].sort((a, b) => (s.end[b] || 0) - (s.end[a] || 0) || a - b);
    for (const b of order.slice(0, LISTED)) {
      const kinds = data.kinds.filter((_, i) => found.get(b) & (1 << i)).join(", ");
      if (b >= data.blocks) { line.append(element("span", `${label(b)} (${kinds}, not drawn) `)); continue; }
      const link = element("button", `${label(b)} (${kinds})`);
      link.type = "button";
      link.addEventListener("click", () => choose(b, true));
      line.append(link);
    }
    if (order.length > LISTED) line.append(`and ${order.length - LISTED} more`);
    return line;
  };
  const describe = () => {
    details.replaceChildren();
    if (chosen < 0) return;
    const s = schedule(), o = data.operations[operation[chosen]];
    const title = element("div");
    title.append(element("b", o.kernel < 0 ? o.name : `Block ${label(chosen)} of ${o.name}`));
    title.append(`: ${show(time(s.start[chosen]))} to ${show(time(s.end[chosen]))} ${data.unit} on SM ${s.sm[chosen]}${s.run[chosen] > s.start[chosen] ? `, where it waits until ${show(time(s.run[chosen]))}` : ""}`);
    details.append(title);
    if (o.full && o.full !== o.name) details.append(element("div", o.full, "full"));
    if (o.place) details.append(element("div", o.place, "full"));
    if (!graph) { details.append(element("div", "The dependences of single blocks are not on this page.")); return; }
    details.append(listed("Waits for", before, s), listed("Waited for by", after, s));
  };
  const choose = (block, reveal) => {
    chosen = block;
    lit = null;
    before = block >= 0 && graph ? predecessors(block) : new Map();
    after = block >= 0 && graph ? successors(block) : new Map();
    if (block >= 0 && reveal) {
      const s = schedule(), middle = (s.start[block] + s.end[block]) / 2;
      const row = s.rowOf[s.sm[block]];
      if (middle < view.t0 || middle > view.t1 || row < view.s0 || row >= view.s1) {
        ({ s0: view.s0, s1: view.s1 } = whole());
        const span = view.t1 - view.t0;
        view.t0 = middle - span / 2; view.t1 = middle + span / 2;
        clamp();
      }
    }
    describe();
    redraw();
  };

  // What a link in a table or a name in the legend is about, seen in the timeline: a block
  // ("3:0"), a kernel ("3") or a function ("function:NAME").
  const reveal = (what) => {
    if (/^\d+:\d+$/.test(what)) { chooseNamed(what); return; }
    const s = schedule(), name = what.startsWith("function:") ? what.slice(9) : null;
    const belongs = (o) => (name === null ? data.operations[o].kernel === Number(what) : data.operations[o].name === name);
    let from = TICKS, to = 0, blocks = 0;
    for (let b = 0; b < data.blocks; b++) {
      if (!isDrawn(s, b) || !belongs(operation[b])) continue;
      from = Math.min(from, s.start[b]); to = Math.max(to, s.end[b]); blocks++;
    }
    choose(-1, false);
    if (!blocks) { details.replaceChildren(element("div", "Its blocks are not drawn here.")); return; }
    lit = belongs;
    view = whole();
    if (name === null) {
      const space = Math.max(4 * (to - from), view.t1 / 10);
      [view.t0, view.t1] = [(from + to - space) / 2, (from + to + space) / 2];
      clamp();
    }
    const first = data.operations.findIndex((_, o) => belongs(o)), o = data.operations[first];
    const title = element("div");
    title.append(element("b", name === null ? `Kernel ${o.kernel}, ${o.name}` : name));
    title.append(`: ${blocks} block${blocks === 1 ? "" : "s"}, ${show(time(from))} to ${show(time(to))} ${data.unit} in ${s.name}`);
    details.replaceChildren(title);
    if (name === null && o.place) details.append(element("div", o.place, "full"));
    redraw();
  };
  const writeLegend = () => {
    const byFunction = pickColour.value === "function", entries = [];
    const add = (colour, text, what) => {
      const item = element("li"), swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      for (const side of ["width", "height"]) box.setAttribute(side, "100%");
      box.setAttribute("fill", colour);
      swatch.append(box);
      if (colour) item.append(swatch);
      if (what) {
        const link = element("a", text);
        link.href = "#timeline";
        link.dataset.show = what;
        item.append(link);
      } else item.append(text);
      entries.push(item);
    };
    if (byFunction) {
      for (const [name, number] of functions) {
        const o = functionOf.indexOf(number);
        if (colourOf(o, true) !== OTHERS) add(colourOf(o, true), name, `function:${name}`);
      }
      const rest = functions.size - entries.length;
      if (rest) add(OTHERS, `${rest} more functions`, "");
    } else {
      const kernels = data.operations.map((o, i) => [o, i]).filter(([o]) => o.kernel >= 0);
      for (const [o, i] of kernels.slice(0, NAMED)) add(colourOf(i, false), `${o.kernel} ${o.name}`, String(o.kernel));
      if (kernels.length > NAMED) add("", `and ${kernels.length - NAMED} more kernels, colours repeated`, "");
    }
    legend.replaceChildren(...entries);
  };

  const clamp = () => {
    const { t1: last, s1: rows } = whole();
    const fix = (low, high, most, least) => {
      const span = Math.min(Math.max(high - low, least), most);
      const from = Math.min(Math.max(low, 0), most - span);
      return [from, from + span];
    };
    [view.t0, view.t1] = fix(view.t0, view.t1, last, 200);
    [view.s0, view.s1] = fix(view.s0, view.s1, rows, 1);
  };
  const zoomTime = (factor, px) => {
    const centre = view.t0 + ((px - LEFT) / (width - LEFT)) * (view.t1 - view.t0);
    view.t0 = centre - (centre - view.t0) * factor;
    view.t1 = centre + (view.t1 - centre) * factor;
  };
  const zoomSms = (factor, py) => {
    const centre = view.s0 + (py / (height - BOTTOM)) * (view.s1 - view.s0);
    view.s0 = centre - (centre - view.s0) * factor;
    view.s1 = centre + (view.s1 - centre) * factor;
  };
  const move = (dx, dy) => {
    const t = (dx / (width - LEFT)) * (view.t1 - view.t0);
    const s = (dy / (height - BOTTOM)) * (view.s1 - view.s0);
    view.t0 -= t; view.t1 -= t; view.s0 -= s; view.s1 -= s;
  };

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const amount = Math.abs(event.deltaY) > Math.abs(event.deltaX) ? event.deltaY : event.deltaX;
    const factor = Math.exp(Math.sign(amount) * Math.min(Math.abs(amount), 200) / 400);
    if (event.shiftKey) zoomSms(factor, event.offsetY); else zoomTime(factor, event.offsetX);
    clamp(); redraw();
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
      if (!drag.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
      drag = { x: event.offsetX, y: event.offsetY, moved: true };
      move(dx, dy); clamp(); redraw();
      tip.hidden = true;
      return;
    }
    const block = blockAt(event.offsetX, event.offsetY);
    tip.hidden = block < 0;
    if (block < 0) return;
    const s = schedule(), o = data.operations[operation[block]];
    tip.textContent = `${label(block)} ${o.name}, ${show(time(s.start[block]))} to ${show(time(s.end[block]))} ${data.unit}`;
    tip.style.left = `${Math.min(event.offsetX + 14, width - 240)}px`;
    tip.style.top = `${Math.min(event.offsetY + 14, height - 40)}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    const clicked = drag && !drag.moved;
    drag = null;
    if (clicked) choose(blockAt(event.offsetX, event.offsetY), false);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  const showAll = () => { view = whole(); lit = null; redraw(); };
  canvas.addEventListener("dblclick", showAll);
  canvas.addEventListener("keydown", (event) => {
    const act = {
      ArrowLeft: () => move(80, 0), ArrowRight: () => move(-80, 0),
      ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60),
      "+": () => zoomTime(0.7, width / 2), "=": () => zoomTime(0.7, width / 2),
      "-": () => zoomTime(1.4, width / 2), Escape: () => choose(-1, false),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act(); clamp(); redraw();
  });
  document.getElementById("timeline-all").addEventListener("click", showAll);
  const chooseNamed = (text) => {
    const [kernel, index] = text.split(":").map(Number);
    const o = data.operations.findIndex((candidate) => candidate.kernel === kernel);
    const first = o < 0 ? -1 : data.operations[o].first;
    const end = o + 1 < data.operations.length ? data.operations[o + 1].first : data.blocks;
    const block = first + index;
    if (o >= 0 && index >= 0 && block < Math.min(end, data.blocks)) choose(block, true);
    else details.replaceChildren(element("div", `There is no block ${text} here: give kernel:block, such as 3:0.`));
  };
  document.getElementById("timeline-block").addEventListener("change", (event) => chooseNamed(event.target.value));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-show]");
    if (link) reveal(link.dataset.show);
  });

  data.schedules.forEach((s, i) => {
    const option = element("option", s.name);
    option.value = String(i);
    pickSchedule.append(option);
  });
  pickSchedule.value = String(data.opens);
  if (data.operations.length > PALETTE.length) pickColour.value = "function";
  view = whole();
  writeLegend();
  pickSchedule.addEventListener("change", () => { view = whole(); describe(); redraw(); });
  pickColour.addEventListener("change", () => { writeLegend(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  for (const [name, value] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(name, () => { printing = value; draw(); });
  }
  new ResizeObserver(redraw).observe(canvas);
  redraw();
})();
