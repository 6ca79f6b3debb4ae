// Reads the dependences.txt of depgraph, for a simulator that lets a block start once all blocks that it
// waits for have ended. Blocks are numbered through all operations; docs/accel-sim.md has the form.
#pragma once
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Dependences {
    struct Operation { long first, blocks, stream; std::string command; };
    struct Join { bool certain; std::vector<long> sources, targets; };
    std::vector<Operation> operations;
    std::vector<std::vector<long>> sets;  // blocks of each
    std::vector<Join> joins;              // all blocks of the targets wait for all of the sources
    std::vector<long> waits;              // joins that each block still waits for

    explicit Dependences(const std::string &path) {
        std::ifstream in(path);
        std::string word, line;
        long version = 0, n_operations = 0, n_sets = 0, n_joins = 0, blocks = 0;
        in >> word >> version >> n_operations >> n_sets >> n_joins;
        if (word != "depgraph-dependences" || version != 1) throw std::runtime_error(path + ": no dependences");
        for (Operation at; n_operations-- && in >> word >> at.blocks >> at.stream; blocks += at.blocks) {
            at.first = blocks;
            std::getline(in >> std::ws, at.command);
            operations.push_back(at);
        }
        auto numbers = [&] {
            long n = 0;
            in >> n;
            std::vector<long> list(in ? n : 0);
            for (long &each : list) in >> each;
            return list;
        };
        while (n_sets-- && in >> word) sets.push_back(numbers());
        for (Join at; n_joins-- && in >> word >> at.certain; joins.push_back(at)) at.sources = numbers(), at.targets = numbers();
        if (!in) throw std::runtime_error(path + ": is cut short");
        waits.assign(blocks, 0), of_block.resize(blocks), left.assign(joins.size(), 0);
        for (size_t j = 0; j < joins.size(); j++) {
            for (long s : joins[j].sources)
                for (long block : sets[s]) of_block[block].push_back(j), left[j]++;
            for (long t : joins[j].targets) for (long block : sets[t]) waits[block]++;
        }
    }
    bool ready(long block) const { return waits[block] == 0; }
    std::vector<long> ended(long block) {  // blocks that wait for nothing any more
        std::vector<long> freed;
        for (long j : of_block[block])
            if (--left[j] == 0)
                for (long t : joins[j].targets) for (long waiting : sets[t])
                    if (--waits[waiting] == 0) freed.push_back(waiting);
        return freed;
    }

  private:
    std::vector<std::vector<long>> of_block;  // joins that each block is a source of
    std::vector<long> left;                   // sources of each join that have not ended
};
