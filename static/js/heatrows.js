/* From the answer's rows to drawn rows: grouped by stage, folded to nodes, opened where a reader or a suspect asks. */

const TARGET = 320,
  LEAST = 2,
  OPENED = 11,
  MOST = 22,
  NAMED = 9;
export const FEW_RANKS = 64; // so few fit with their numbers; nothing is folded

const clamp = (v, lo, hi) => Math.max(lo, Math.min(hi, v));
const pooled = head => (head.pooled?.rows || 1) > 1;

/* What a row is opened by: its node, or its ranks where it holds several nodes. */
export const openKey = row => row.node ?? row.ranks.join("-");

/* Rows of one node that follow each other, as [{node, stage, rows: [index]}]. */
function byNode(head) {
  const out = [];
  head.rows.forEach((row, i) => {
    const last = out.at(-1),
      same = last && row.node !== null && row.node !== undefined && last.node === row.node && last.stage === row.stage;
    if (same && !pooled(head)) last.rows.push(i);
    else
      out.push({
        node: openKey(row),
        named: row.node !== null && row.node !== undefined,
        stage: row.stage,
        label: row.label,
        rows: [i],
      });
  });
  return out;
}
export function ranksText(ranges) {
  const merged = [];
  for (const [a, b] of ranges) {
    const last = merged.at(-1);
    if (last && a === last[1] + 1) last[1] = b;
    else merged.push([a, b]);
  }
  const text = merged
    .slice(0, 3)
    .map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`))
    .join(", ");
  return merged.length > 3 ? text + ", …" : text;
}

function rankRow(row, src, node, h, extra) {
  const [a, b] = row.ranks;
  return {
    key: `r${a}`,
    kind: a === b ? "rank" : "pool",
    h,
    src: [src],
    node,
    stage: row.stage,
    ranks: [[a, b]],
    label: a === b ? String(a) : ranksText([[a, b]]),
    named: h >= NAMED,
    ...extra,
  };
}

/* view: {rows: "nodes" | "ranks", open: Set, suspects: Set}; details: node -> Cells with its single ranks */
export function layoutRows(
  head,
  { rows = "nodes", open = new Set(), suspects = new Set(), order = "stage" },
  details = new Map(),
) {
  const nodes = byNode(head),
    few = head.rows.length <= FEW_RANKS && !pooled(head),
    ranks = rows === "ranks" || few;
  const count = ranks ? head.rows.length : nodes.length,
    h = clamp(Math.floor(TARGET / Math.max(1, count)), LEAST, ranks ? MOST : 14);
  const groups = [];
  for (const node of nodes) {
    const staged = order === "stage" && node.stage !== null && node.stage !== undefined,
      key = staged ? `stage ${node.stage}` : "";
    let group = groups.at(-1);
    if (!group || group.key !== key) groups.push((group = { key, label: key, sub: "", nodes: [], rows: [] }));
    if (node.named) group.nodes.push(node.node);
    group.first = Math.min(group.first ?? Infinity, ...node.rows.map(i => head.rows[i].ranks[0]));
    group.last = Math.max(group.last ?? 0, ...node.rows.map(i => head.rows[i].ranks[1]));
    group.rows.push(
      ...nodeRows(head, node, {
        h,
        ranks,
        open: open.has(node.node),
        suspect: suspects.has(node.node),
        detail: details.get(node.node),
      }),
    );
  }
  for (const group of groups) {
    const n = new Set(group.nodes).size;
    group.sub = n ? nodesText(group.nodes) : `${group.first}–${group.last}`;
    group.few = n ? `${n} node${n === 1 ? "" : "s"}` : "";
  }
  return groups;
}
function nodeRows(head, node, { h, ranks, open, suspect, detail }) {
  const single = node.rows.length === 1 && !detail;
  if (open && detail)
    return detail.head.rows.map((row, i) => rankRow(row, i, node.node, OPENED, { cells: detail, open: true, suspect }));
  if (ranks || (open && !single))
    return node.rows.map(i => rankRow(head.rows[i], i, node.node, open ? Math.max(OPENED, h) : h, { open, suspect }));
  const ranges = node.rows.map(i => head.rows[i].ranks);
  return [
    {
      key: `n${node.node}/${ranges[0][0]}`,
      kind: single && ranges[0][0] === ranges[0][1] ? "rank" : "node",
      h,
      src: node.rows,
      node: node.node,
      named: false,
      stage: node.stage,
      ranks: ranges,
      label: node.label && single ? node.label : node.node,
      open: false,
      suspect,
    },
  ];
}
export function nodesText(names) {
  const unique = [...new Set(names)],
    a = unique[0],
    b = unique.at(-1);
  if (unique.length < 2 || !a || !b) return a || "";
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i++;
  while (i > 0 && /\d/.test(b[i - 1])) i--;
  const tail = b.slice(i).replace(/^\d*?(\d{1,4}$)/, "$1");
  return `${a}–${tail}`;
}
export const countRanks = row => row.ranks.reduce((n, [a, b]) => n + b - a + 1, 0);
