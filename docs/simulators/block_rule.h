// The rule for a simulator's block scheduler: a block may go to a core once all blocks that it waits for
// have ended, the oldest first. Reads the dependences.txt of depgraph; docs/accel-sim.md says who asks what.
#pragma once
#include "dependences.h"
#include <algorithm>
#include <map>
#include <set>

class BlockRule {
  public:
    explicit BlockRule(const std::string &path) : known(path) {
        std::vector<long> begin;
        for (size_t k = 0; k < known.operations.size(); k++) {
            const Dependences::Operation &one = known.operations[k];
            if (is_kernel(k)) number[one.command] = k;
            for (long block = one.first; block < one.first + one.blocks; block++)
                if (known.ready(block)) begin.push_back(block);
        }
        settle(begin);
    }
    // The operation of a kernel by the name of its trace file; -1 if there is none.
    long operation(const std::string &trace) const {
        auto found = number.find(trace);
        return found == number.end() ? -1 : found->second;
    }
    // The oldest block that may start, of the operations that `may_run(operation)` says are launched and fit;
    // -1 if there is none. Blocks are numbered through all operations.
    template <class MayRun> long next(MayRun may_run) const {
        long refused = -1;
        for (long block : ready) {
            long of = operation_of(block);
            if (of != refused && may_run(of)) return block;
            refused = of;
        }
        return -1;
    }
    void issued(long block) { ready.erase(block); }
    void ended(long block) { settle(known.ended(block)); }
    // The operation of a block, and the number of the block within it.
    long operation_of(long block) const {
        auto after = std::upper_bound(known.operations.begin(), known.operations.end(), block,
            [](long at, const Dependences::Operation &one) { return at < one.first; });
        return after - known.operations.begin() - 1;
    }
    long index_of(long block) const { return block - known.operations[operation_of(block)].first; }

  private:
    bool is_kernel(long k) const { return known.operations[k].stream >= 0; }
    // Kernels' blocks wait to be issued; copies and memsets take no core, and end at once.
    void settle(std::vector<long> released) {
        while (!released.empty()) {
            long block = released.back();
            released.pop_back();
            if (is_kernel(operation_of(block))) { ready.insert(block); continue; }
            for (long freed : known.ended(block)) released.push_back(freed);
        }
    }
    Dependences known;
    std::set<long> ready;
    std::map<std::string, long> number;
};
