/* Places the nodes of a picture, off the page's thread (W9): folds the steps, then lets dagre lay them out.
   The page sends {scripts, shape} once, then {id, steps, direction}; the answer has {id, nodes, edges, width, height}. */
(() => {
  "use strict";

  const CHARACTER = 7.3;
  const LONGEST = 30;
  const SHORTEST = 17; // "succeeded, 17.8 s" fits below the name
  const SHORTEST_TALL = 24; // and "running, 12 of 50 items"
  const FEW = 100; // above, the tighter ranking takes seconds
  let shape = null;
  let layers = null;
  let maps = null;
  let fold = null;

  function size_of(title, is_tall) {
    return { width: Math.min(Math.max([...title].length, is_tall ? SHORTEST_TALL : SHORTEST), LONGEST) * CHARACTER + 42, height: is_tall ? 58 : 46 };
  }

  function lay_out({ id, steps, direction }) {
    const { groups, edges } = fold.fold(shape, layers, steps);
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: direction, nodesep: 18, ranksep: 46, marginx: 12, marginy: 12, ranker: groups.length > FEW ? "longest-path" : "tight-tree" });
    graph.setDefaultEdgeLabel(() => ({}));
    groups.forEach((group, index) => {
      const title = group.title || shape.names[group.steps[0]];
      const is_tall = group.steps.length > 1 || maps.has(group.steps[0]);
      graph.setNode(String(index), { ...size_of(title, is_tall), title, is_tall });
    });
    for (const [from, to] of edges) graph.setEdge(String(from), String(to));
    dagre.layout(graph);
    const nodes = groups.map((group, index) => {
      const { x, y, width, height, title, is_tall } = graph.node(String(index));
      return { x, y, width, height, title, is_tall, steps: group.steps, is_group: group.title !== null };
    });
    const { width, height } = graph.graph();
    const lines = edges.map(([from, to]) => ({ from, to, points: graph.edge(String(from), String(to)).points }));
    self.postMessage({ id, nodes, edges: lines, width: groups.length ? width : 0, height: groups.length ? height : 0 });
  }

  self.onmessage = ({ data }) => {
    if (data.scripts) {
      self.importScripts(...data.scripts);
      shape = data.shape;
      maps = new Set(shape.maps);
      fold = self.ondot_fold;
      layers = fold.layers_of(shape);
      return;
    }
    lay_out(data);
  };
})();
