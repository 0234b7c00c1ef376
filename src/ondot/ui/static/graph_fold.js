/* Which nodes a picture of a workflow has: its steps, or groups of them if there are too many to read (W9).
   Pure functions over step numbers; runs in the worker. A shape is {names, parents}, by step number. */
(() => {
  "use strict";

  const MOST_NODES = 200;
  const MOST_EDGES = 500; // with more, dagre takes seconds and nobody can follow the lines
  const RANGES = 50; // groups into which a range of layers or of names is cut
  const SMALLEST_GROUP = 3;
  const FEWEST_PREFIXES = 4; // fewer nodes would show nothing of the graph

  /* The longest way from a step without parents, of all steps. */
  function layers_of(shape) {
    const count = shape.names.length;
    const children = Array.from({ length: count }, () => []);
    const missing = shape.parents.map((parents, step) => {
      for (const parent of parents) children[parent].push(step);
      return parents.length;
    });
    const layers = new Array(count).fill(0);
    const order = [];
    for (let step = 0; step < count; step += 1) if (missing[step] === 0) order.push(step);
    for (let index = 0; index < order.length; index += 1) {
      for (const child of children[order[index]]) {
        layers[child] = Math.max(layers[child], layers[order[index]] + 1);
        missing[child] -= 1;
        if (missing[child] === 0) order.push(child);
      }
    }
    return layers;
  }

  /* What names of similar steps have in common: load-0017 is one of load. */
  function prefix_of(name) {
    const without_number = name.replace(/[-_.:/ #]*\d+$/u, "");
    if (without_number && without_number !== name) return without_number;
    const cut = name.search(/[-_.:/ #][^-_.:/ #]*$/u);
    return cut > 0 ? name.slice(0, cut) : name;
  }

  function partition(steps, key_of) {
    const groups = new Map();
    for (const step of steps) {
      const key = key_of(step);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(step);
    }
    return groups;
  }

  /* Groups, where those that are too small stay single steps. */
  function keep_small(groups, title_of) {
    return [...groups].flatMap(([key, steps]) => (steps.length < SMALLEST_GROUP
      ? steps.map((step) => ({ steps: [step], title: null }))
      : [{ steps, title: title_of(key, steps) }]));
  }

  const by_step = (shape, layers, steps) => steps.map((step) => ({ steps: [step], title: null }));

  const by_layer_and_prefix = (shape, layers, steps) => keep_small(
    partition(steps, (step) => `${layers[step]} ${prefix_of(shape.names[step])}`),
    (key, members) => `${prefix_of(shape.names[members[0]])} …`,
  );

  const by_prefix = (shape, layers, steps) => keep_small(
    partition(steps, (step) => prefix_of(shape.names[step])), (key) => `${key} …`);

  const by_layer = (shape, layers, steps) => keep_small(
    partition(steps, (step) => layers[step]), (layer) => `layer ${layer + 1}`);

  function by_layers(shape, layers, steps) {
    const used = [...new Set(steps.map((step) => layers[step]))].sort((one, other) => one - other);
    const place = new Map(used.map((layer, index) => [layer, index]));
    const width = Math.ceil(used.length / RANGES);
    return keep_small(partition(steps, (step) => Math.floor(place.get(layers[step]) / width)), (range) => {
      const last = used[Math.min((range + 1) * width, used.length) - 1];
      return `layers ${used[range * width] + 1} to ${last + 1}`;
    });
  }

  function by_name(shape, layers, steps) {
    const sorted = [...steps].sort((one, other) => shape.names[one].localeCompare(shape.names[other], "en", { numeric: true }));
    const width = Math.ceil(sorted.length / RANGES);
    const groups = [];
    for (let start = 0; start < sorted.length; start += width) {
      const members = sorted.slice(start, start + width);
      groups.push({ steps: members, title: `${shape.names[members[0]]} …` });
    }
    return groups;
  }

  /* The edges between groups, each once, without those inside a group. */
  function edges_of(shape, groups) {
    const group_of = new Map(groups.flatMap((group, index) => group.steps.map((step) => [step, index])));
    const known = new Set();
    const edges = [];
    for (const [step, to] of group_of) {
      for (const parent of shape.parents[step]) {
        const from = group_of.get(parent);
        const key = from * groups.length + to;
        if (from === undefined || from === to || known.has(key)) continue;
        known.add(key);
        edges.push([from, to]);
      }
    }
    return edges;
  }

  /* Groups in an order in which parents come first; shorter than all groups if there is a cycle. */
  function order_of(count, edges) {
    const children = Array.from({ length: count }, () => []);
    const missing = new Array(count).fill(0);
    for (const [from, to] of edges) {
      children[from].push(to);
      missing[to] += 1;
    }
    const order = missing.flatMap((number, index) => (number === 0 ? [index] : []));
    for (let index = 0; index < order.length; index += 1) {
      for (const child of children[order[index]]) {
        missing[child] -= 1;
        if (missing[child] === 0) order.push(child);
      }
    }
    return order;
  }

  /* Without the edges that a longer way implies: between groups they would only hide the way. */
  function without_implied(count, edges, order) {
    const parents = Array.from({ length: count }, () => []);
    for (const [from, to] of edges) parents[to].push(from);
    const above = Array.from({ length: count }, () => new Set());
    for (const group of order) {
      for (const parent of parents[group]) {
        above[group].add(parent);
        for (const one of above[parent]) above[group].add(one);
      }
    }
    return edges.filter(([from, to]) => !parents[to].some((other) => other !== from && above[other].has(from)));
  }

  /* The nodes of a picture of these steps, as {groups, edges}: the first way to fold that is small enough to read.
     Groups of one layer never form a cycle; groups of a prefix or of a range of names may, and are not used then. */
  function fold(shape, layers, steps) {
    for (const way of [by_step, by_layer_and_prefix, by_prefix, by_layer, by_layers, by_name]) {
      const groups = way(shape, layers, steps);
      if (groups.length > MOST_NODES || (groups.length === 1 && steps.length > 1)) continue;
      if (way === by_prefix && groups.length < FEWEST_PREFIXES) continue;
      const edges = edges_of(shape, groups);
      const order = order_of(groups.length, edges);
      if (order.length < groups.length) continue;
      const drawn = way === by_step ? edges : without_implied(groups.length, edges, order);
      if (drawn.length <= MOST_EDGES) return { groups, edges: drawn };
    }
    return { groups: [{ steps, title: `${steps.length} steps` }], edges: [] };
  }

  self.ondot_fold = { fold, layers_of, prefix_of };
})();
