/* Small SVG builder: text never becomes markup. */
const NS = "http://www.w3.org/2000/svg";
export function node(tag, attrs = {}, ...children) {
  const el = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attrs))
    if (value !== undefined && value !== null) el.setAttribute(name, value);
  el.append(...children.filter(c => c !== null && c !== undefined));
  return el;
}
export const text = (x, y, words, cls, anchor = "start") =>
  node("text", { x, y, class: cls, "text-anchor": anchor }, String(words));
export const title = words => node("title", {}, words);
