// What a view is given, a buffer that diffscope/views/attention.py writes, and what is read off it.

// What a buffer says and its tensors, maps with NaN where no query sees the key.
function parse(bytes) {
  const read = opened(bytes);
  const data = { keyTokens: read.tokens, keySpans: read.spans, ...read, shares: {}, limits: {} }; // in cross-attention keys have their own
  for (const part of data.detail ? ["", "detail."] : [""])
    for (const { name } of data.panels)
      for (const map of [part + name, part + "share_" + name])
        if (data.tensors[map]) data.tensors[map] = spread(data.tensors[map], data.tensors[part + "visible"], shapeOf(data, part));
  data.text = [...data.tokens, "", ...data.keyTokens].join("\u0000");
  return data;
}

// Values of visible cells in their places.
function spread(values, bits, [rows, columns]) {
  const all = new Float32Array(rows * columns).fill(NaN);
  let next = 0;
  for (let i = 0; i < all.length; i++) if ((bits[i >> 3] >> (7 - (i & 7))) & 1) all[i] = values[next++];
  return all;
}

// Of the bins ("") or of the exact window ("detail.").
const shapeOf = (data, part) => (part ? data.detail.shape : data.shape);

// Values of a map, or the shares that they are of their rows' absolute sums, with their signs; computed once.
function valuesOf(data, part, name, shares) {
  const values = data.tensors[part + name];
  if (!shares) return values;
  if (data.tensors[part + "share_" + name]) return data.tensors[part + "share_" + name];
  if (!data.shares[part + name]) {
    const mass = data.tensors["mass_" + name];
    const columns = shapeOf(data, part)[1];
    const top = part ? data.detail.top : 0;
    data.shares[part + name] = values.map(
      (value, i) => value / (mass.length > 1 ? mass[top + Math.floor(i / columns)] : mass[0]),
    );
  }
  return data.shares[part + name];
}

// Where the values of a cell are: in the exact window, if that holds it, else in bins.
function placeOf(data, { row, column }) {
  if (data.detail) {
    const [rows, columns] = data.detail.shape;
    const down = row - data.detail.top;
    const right = column - data.detail.left;
    if (down >= 0 && right >= 0 && down < rows && right < columns)
      return { part: "detail.", cell: down * columns + right, bin: 1 };
  }
  return { part: "", cell: Math.floor(row / data.bin) * data.shape[1] + Math.floor(column / data.bin), bin: data.bin };
}

// The size at the end of the colours: the largest, or what one in two hundred exceeds, without the first key; computed once. Bins show
// the largest of many values, so that the exact ones of a window have an end of their own.
function limitOf(data, part, { robust, sink, scale }, panels) {
  const names = panels.map(({ name }) => name);
  return (data.limits[[part, robust, sink, scale, ...names]] ??= endOf(data, names, part, robust, robust || !sink, SCALES[scale].shares));
}

function endOf(data, names, part, robust, withoutFirst, shares) {
  const [rows, columns] = shapeOf(data, part);
  const first = withoutFirst && columns > 1 && !(part && data.detail.left) ? 1 : 0;
  const sizes = new Float32Array(names.length * rows * columns);
  let count = 0;
  for (const name of names) {
    const values = valuesOf(data, part, name, shares);
    for (let i = 0; i < values.length; i++) {
      const size = Math.abs(values[i]);
      if (size > 0 && i % columns >= first) sizes[count++] = size;
    }
  }
  if (!count) return 1;
  const sorted = sizes.subarray(0, count).sort();
  return sorted[Math.floor((robust ? 0.995 : 1) * (count - 1))];
}

function number(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (value < 0) return `−${number(-value)}`;
  return value >= 0.001 ? value.toFixed(4) : value.toExponential(1);
}

function percent(share) {
  if (Number.isNaN(share)) return "–";
  return share < 0 ? `−${percent(-share)}` : `${Number((100 * share).toPrecision(3))} %`;
}

// Whitespace and control characters as figures show them (diffscope/figures/escaping.py).
const VISIBLE = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "⇤", "\u00a0": "⍽" };
const visible = (text) => text.replace(/[ \u00a0\p{C}\p{Zl}\p{Zp}]/gu, (letter) => VISIBLE[letter] ?? escaped(letter)) || "∅";

function escaped(letter) {
  const code = letter.codePointAt(0);
  return code > 0xff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\x${code.toString(16).padStart(2, "0")}`;
}

// A token as an axis names it: short, its whitespace visible.
function named(text) {
  const shown = text === undefined ? "" : visible(text);
  const letters = [...shown];
  return letters.length > LETTERS_OF_NAME ? `${letters.slice(0, LETTERS_OF_NAME - 1).join("")}…` : shown;
}

// A token in quotation marks, with its position; set apart, so that what is written from right to left does not turn its surroundings.
const token = (tokens, at) => `\u2068${JSON.stringify(tokens[at] ?? "")}\u2069 (${at})`;
