// Files in a program that may close what it finds open, limit their size, or run another in its place.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace {

constexpr int64_t MOST_PROCESSES = 1 << 22;  // beyond any id of a process, as EARLIER in Python

class File {
public:
    bool open_as(const std::string& name, int way) {
        path = name;
        flags = O_WRONLY | O_CLOEXEC | way;
        number = open(path.c_str(), flags | O_CREAT | O_TRUNC, 0600);
        return number >= 0 && fstat(number, &known) == 0;
    }

    // Write all of something, at a place if it is not appended; return whether all of it is there.
    bool write_all(const void* from, uint64_t bytes, uint64_t place = 0) {
        if (!is_open() || !has_room(bytes, place)) return false;
        const char* at = static_cast<const char*>(from);
        while (bytes > 0) {
            const ssize_t n = flags & O_APPEND ? write(number, at, bytes)
                                               : pwrite(number, at, bytes, static_cast<off_t>(place));
            if (n <= 0) return false;
            at += n;
            place += n;
            bytes -= n;
        }
        return true;
    }

    void forget() { number = -1; }

private:
    std::string path;
    int flags = 0, number = -1;
    struct stat known {}, now {};

    // The program may have closed it, and have opened a file of its own by that number.
    bool is_open() {
        if (number < 0) return false;
        if (fstat(number, &now) == 0 && now.st_ino == known.st_ino && now.st_dev == known.st_dev) return true;
        number = open(path.c_str(), flags);
        return number >= 0 && fstat(number, &now) == 0;
    }

    // A write beyond the limit of the program's files would end it.
    bool has_room(uint64_t bytes, uint64_t place) {
        rlimit most;
        const uint64_t begin = flags & O_APPEND ? now.st_size : place;
        errno = EFBIG;
        return getrlimit(RLIMIT_FSIZE, &most) != 0 || begin + bytes <= most.rlim_cur;
    }
};

// A process that has run another program in its place goes on by its number: what that one left gets
// another number. Of files their kinds and the ends of their names, as ("events", ".jsonl").
using Kinds = std::initializer_list<std::pair<const char*, const char*>>;

void make_way(const std::string& folder, int64_t process, const Kinds& kinds) {
    const auto name = [&](const auto& kind, int64_t number) {
        return folder + "/" + kind.first + "-" + std::to_string(number) + kind.second;
    };
    const auto& first = *kinds.begin();
    int64_t other = process;
    while (access(name(first, other).c_str(), F_OK) == 0) other += MOST_PROCESSES;
    if (other == process) return;
    for (const auto& kind : kinds) rename(name(kind, process).c_str(), name(kind, other).c_str());
}

}  // namespace
