// Launches of CUDA graphs, and what their nodes wait for: read when a graph is instantiated. Updates
// leave that as it is. Once the program has destroyed the graph its nodes have other handles, which are
// asked as they are launched; they do not tell in which node a graph stands that is inside of another.
#pragma once

#include <utility>

#include "events.h"

namespace {

constexpr unsigned char IN_LAUNCH_ORDER = 2;  // CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER: waits for no end

void add_edge(Executable& made, int before, int after) {
    made.edges += (made.edges.empty() ? "[" : ", [") + std::to_string(before) + ", "
        + std::to_string(after) + "]";
}

// Read nodes and edges of a graph; those inside of a node stand between its number and one more.
bool read_graph(CUgraph graph, Executable& made) {
    size_t n_nodes = 0, n_edges = 0;
    if (get_nodes(graph, nullptr, &n_nodes) != CUDA_SUCCESS
        || get_edges(graph, nullptr, nullptr, nullptr, &n_edges) != CUDA_SUCCESS) {
        return false;
    }
    std::vector<CUgraphNode> nodes(n_nodes), from(n_edges), to(n_edges);
    std::vector<CUgraphEdgeData> ports(n_edges);
    if ((n_nodes && get_nodes(graph, nodes.data(), &n_nodes) != CUDA_SUCCESS)
        || (n_edges && get_edges(graph, from.data(), to.data(), ports.data(), &n_edges) != CUDA_SUCCESS)) {
        return false;
    }
    std::map<CUgraphNode, int> end_of;
    for (const CUgraphNode each : nodes) {
        const int number = made.nodes[each] = end_of[each] = made.n_nodes++;
        CUgraphNodeType type;
        CUgraph inside;
        if (get_node_type(each, &type) != CUDA_SUCCESS) return false;
        made.is_flat &= type != CU_GRAPH_NODE_TYPE_GRAPH && type != CU_GRAPH_NODE_TYPE_CONDITIONAL;
        if (type != CU_GRAPH_NODE_TYPE_GRAPH) continue;
        if (get_child(each, &inside) != CUDA_SUCCESS || !read_graph(inside, made)) return false;
        const int end = end_of[each] = made.n_nodes++;
        for (int i = number; i < end; ++i) {
            if (i > number) add_edge(made, number, i);
            add_edge(made, i, end);
        }
    }
    for (size_t i = 0; i < n_edges; ++i) {
        if (ports[i].from_port == IN_LAUNCH_ORDER) continue;
        add_edge(made, end_of[from[i]], made.nodes[to[i]]);
    }
    return true;
}

// Keep what the nodes of a graph wait for.
void note_graph(CUgraphExec handle, CUgraph graph) {
    Executable made;
    const bool can_read = get_nodes && get_edges && get_dependencies && get_node_type && get_child;
    made.is_known = can_read && read_graph(graph, made);
    made.turn = new_event();
    const Guard guard(lock);
    made.number = graphs_seen++;
    executables[handle] = std::move(made);
}

void forget_graph(CUgraphExec handle) {
    const Guard guard(lock);
    executables.erase(handle);
}

// Say that a graph is launched, and which; its launches come one after another, as by an event that
// each one waits for and records.
void begin_graph(const Sanitizer_GraphLaunchData* data) {
    const std::string where = field("context", number_of(data->context))
        + field("stream", stream_of(data->context, data->hStream));
    std::string which;
    {
        const Guard guard(lock);
        const auto known = executables.find(data->graphExec);
        if (known != executables.end()) {
            launched = &known->second;
            const std::string turn = field("id", launched->turn) + where;
            say("\"event\": \"sync\", \"what\": \"wait\"" + turn);
            after_launch = "\"event\": \"sync\", \"what\": \"record\"" + turn;
        }
        if (launched != nullptr && launched->is_known) which = field("graph", launched->number);
    }
    is_graph_launched = true;
    say("\"event\": \"graph\"" + field("begins", 1) + where + which);
}

// Number a node of the graph that is launched; what it waits for is asked where that is not known.
int number_of_node(CUgraphNode which) {
    const auto known = launched->nodes.find(which);
    if (known != launched->nodes.end()) return known->second;
    const int number = launched->nodes[which] = launched->n_nodes++;
    launched->is_told = false;
    size_t n = 0;
    launched->is_known &= get_dependencies(which, nullptr, nullptr, &n) == CUDA_SUCCESS;
    std::vector<CUgraphNode> before(n);
    std::vector<CUgraphEdgeData> ports(n);
    if (n > 0) {
        launched->is_known &= get_dependencies(which, before.data(), ports.data(), &n) == CUDA_SUCCESS;
    }
    for (size_t i = 0; i < n && launched->is_known; ++i) {
        if (ports[i].from_port != IN_LAUNCH_ORDER) add_edge(*launched, number_of_node(before[i]), number);
    }
    return number;
}

// Say which node of the graph that is launched something is.
std::string of_node() {
    if (node == nullptr || launched == nullptr || !launched->is_known) return "";
    if (!launched->is_flat && launched->nodes.count(node) == 0) return "";
    return field("node", number_of_node(node));
}

void end_graph(CUcontext context) {
    if (!is_graph_launched) return;
    say("\"event\": \"graph\"" + field("begins", 0) + field("context", number_of(context)));
    if (!after_launch.empty()) say(after_launch);
    is_graph_launched = false;
    if (launched != nullptr && launched->is_known && !std::exchange(launched->is_told, true)) {
        say("\"event\": \"edges\"" + field("graph", launched->number) + ", \"pairs\": ["
            + launched->edges + "]");
    }
    write_lines(std::exchange(held, ""));
    launched = nullptr;
    after_launch.clear();
}

}  // namespace
