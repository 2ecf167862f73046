// What the drawings of a page have in common: a buffer read, elements, colours. Their modules begin with this text.

const HALVES = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  let size = (1024 + fraction) * 2 ** (exponent - 25);
  if (exponent === 0) size = fraction * 2 ** -24;
  if (exponent === 31) size = fraction ? NaN : Infinity;
  HALVES[bits] = bits & 32768 ? -size : size;
}

const READERS = {
  F16: (raw, unit) => {
    const bits = new Uint16Array(raw);
    const values = new Float32Array(bits.length);
    for (let i = 0; i < bits.length; i++) values[i] = unit * HALVES[bits[i]];
    return values;
  },
  F32: (raw) => new Float32Array(raw),
  I32: (raw) => new Int32Array(raw),
  U8: (raw) => new Uint8Array(raw),
};

// What a buffer says, a safetensors file with everything that is no number as JSON under __metadata__.view; beside that its tensors
// and their shapes by name, float16 in units of its `unit`.
function opened(bytes) {
  const buffer = bytes instanceof ArrayBuffer ? bytes : bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: words, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const data = { unit: 1, ...JSON.parse(words.view), tensors: {}, shapes: {} };
  for (const [name, { dtype, shape, data_offsets: at }] of Object.entries(entries)) {
    data.tensors[name] = READERS[dtype](buffer.slice(start + at[0], start + at[1]), data.unit);
    data.shapes[name] = shape;
  }
  return data;
}

function element(tag, style = {}, attributes = {}, text = "") {
  const node = document.createElement(tag);
  Object.assign(node.style, style);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

// So many pixels of the page, at the resolution of the screen.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

function polygon(context, ...corners) {
  context.beginPath();
  for (const corner of corners) context.lineTo(...corner);
  context.fill();
}

// A page may be light where the system is dark: the colour of its text tells. Nobody tells when the page turns dark, but a
// transition of that colour ends: what is to be painted anew has TURNING in its style.
const TURNING = { color: "inherit", transition: "color 1ms" };

function isDark(node) {
  const [red, green, blue] = getComputedStyle(node)
    .color.match(/[\d.]+/g)
    .map(Number);
  return 0.3 * red + 0.6 * green + 0.1 * blue > 128;
}

function whenTurned(node, paint) {
  node.addEventListener("transitionend", ({ target }) => target === node && paint());
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0; // as canvases keep it
const unpacked = (colour) => [0, 8, 16].map((bits) => (colour >> bits) & 255);
const css = (colour) => `rgb(${unpacked(colour)})`;

// Colours of spans and heads are for light pages; on dark ones they come nearer to white.
function onPage(colour, dark) {
  return dark ? `rgb(${channels(colour).map((part) => Math.round((part + 255) / 2))})` : colour;
}

// Black or white, whichever is read better on a colour: at least 4.5 to 1 (WCAG 2, relative luminance) on any.
function inkOn(colour) {
  const [red, green, blue] = unpacked(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

const STEPS = 257; // an odd number: of a diverging ramp the middle one is zero
const ZERO = (STEPS - 1) / 2;

// Colours along stops at equal distances, as one integer each.
function colours(stops) {
  return Uint32Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const high = channels(stops[low + 1]);
    return packed(channels(stops[low]).map((from, c) => Math.round(from + (high[c] - from) * (at - low))));
  });
}

// Each scale's colours. Dark pages begin at the page's own dark and end light, but not so
// light that two colours meet.
function rampsOf(look, dark) {
  const turned = (stops) => (dark ? [look.dark, ...stops.slice(3).reverse()] : stops);
  const blue = turned(look.blue);
  const orange = turned(look.orange);
  return {
    blue: { table: colours(blue), diverging: false },
    orange: { table: colours(orange), diverging: false },
    diverging: { table: colours([...orange.slice(1).reverse(), ...blue]), diverging: true },
  };
}

// The colour of a place on a ramp: from 0 to 1, of a diverging one from -1 to 1.
function colourAt({ table, diverging }, place) {
  return table[Math.round(diverging ? ZERO + ZERO * place : (STEPS - 1) * place)];
}

// A bar of colours with words along it, pointed where values go on beyond its ends.
class ColourBar {
  constructor() {
    this.box = element("div", { fontSize: "11px", lineHeight: "1.3" });
    this.canvas = element("canvas", { display: "block" }, { role: "img" });
    this.labels = element("div", { position: "relative", height: "1.3em", opacity: 0.85 }, { "aria-hidden": "true" });
    this.box.append(this.canvas, this.labels);
  }

  // `marks` are shares of the bar with their words; `place` says where on the ramp a share of the bar is, by default all along it.
  draw(ramp, { marks, label, width, below = false, above = false, place = (share) => (ramp.diverging ? 2 * share - 1 : share) }) {
    sized(this.canvas, width, 9);
    const context = this.canvas.getContext("2d");
    const { width: long, height: high } = this.canvas;
    const left = below ? high : 0;
    const right = long - (above ? high : 0);
    const image = context.createImageData(right - left, high);
    const row = Uint32Array.from({ length: right - left }, (_, i) => colourAt(ramp, place((i + 0.5) / (right - left))));
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < high; i++) pixels.set(row, i * row.length);
    context.putImageData(image, left, 0);
    context.fillStyle = css(colourAt(ramp, place(1)));
    if (above) polygon(context, [right, 0], [long, high / 2], [right, high]);
    context.fillStyle = css(colourAt(ramp, place(0)));
    if (below) polygon(context, [left, 0], [0, high / 2], [left, high]);
    const ratio = window.devicePixelRatio || 1;
    const at = (share) => (left + share * (right - left)) / ratio;
    const style = (share) => ({
      position: "absolute",
      whiteSpace: "nowrap",
      left: `${at(share)}px`,
      transform: `translateX(-${100 * share}%)`,
    });
    this.labels.replaceChildren(...marks.map(([share, text]) => element("span", style(share), {}, text)));
    this.canvas.setAttribute("aria-label", label);
    this.canvas.title = label;
  }
}

// Buffers of heads that the page holds, by prompt, layer and head: a view shows another of them without asking its host.
const HELD = (window.diffscopeHeld ??= new Map());
const HOLDERS = (window.diffscopeHolders ??= new Set()); // what holds heads for this page
const CHOSEN = "diffscope-head"; // the event of a page that another head is looked at
const MARKED = "diffscope-spans"; // the event of a page that tokens of a prompt were marked as a span
const PATIENCE = 5000; // milliseconds in which a host shows the head that was asked for

// The tokens of a range, which ends before its second number.
const tokensOf = ([start, stop]) => Array.from({ length: stop - start }, (_, i) => start + i);
const headName = (layer, head) => `L${layer}H${head}`;
const placeOfHead = (prompt, layer, head) => `${prompt} ${layer} ${head}`;

// Tells all that shows heads on a page which holds several that another one is looked at. Returns whether it is awaited: the page
// does not hold it, and its host has yet to send it.
function announce(detail) {
  if (HOLDERS.size) window.dispatchEvent(new CustomEvent(CHOSEN, { detail }));
  return Boolean(detail.awaited);
}

// The head so many layers down and heads to the right, within a model's layers and how many heads each has.
function neighbour({ layers, heads }, { layer, head }, down, right) {
  const row = Math.min(Math.max(layers.indexOf(layer) + down, 0), layers.length - 1);
  return { layer: layers[row], head: Math.min(Math.max(head + right, 0), heads[row] - 1) };
}
