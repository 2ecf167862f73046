// What views on canvases begin with: a buffer read, elements, colours. Their modules have this text before their own.
//
// A buffer is a safetensors file: uint8, float16 and float32 tensors, and everything else as JSON under __metadata__.view.

const HALVES = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const exponent = (bits >> 10) & 31,
    fraction = bits & 1023;
  let size = (1024 + fraction) * 2 ** (exponent - 25);
  if (exponent === 0) size = fraction * 2 ** -24;
  if (exponent === 31) size = fraction ? NaN : Infinity;
  HALVES[bits] = bits & 32768 ? -size : size;
}

// The tensors of a buffer by name, float16 as float32, and the view's own words.
export function parse(bytes) {
  const buffer = bytes instanceof ArrayBuffer ? bytes : bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, about] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const raw = buffer.slice(8 + length + about.data_offsets[0], 8 + length + about.data_offsets[1]);
    let values;
    if (about.dtype === "F16") values = Float32Array.from(new Uint16Array(raw), (bits) => HALVES[bits]);
    else if (about.dtype === "F32") values = new Float32Array(raw);
    else if (about.dtype === "U8") values = new Uint8Array(raw);
    else throw new Error(`a view has no tensors of ${about.dtype}`);
    tensors[name] = { shape: about.shape, values };
  }
  return { ...JSON.parse(header.__metadata__.view), tensors };
}

function element(tag, style = {}, attributes = {}) {
  const node = document.createElement(tag);
  Object.assign(node.style, style);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// So many pixels of the page, at the resolution of the screen.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

const bright = (red, green, blue) => 0.3 * red + 0.6 * green + 0.1 * blue > 128;

// A page may be light where the system is dark: the colour of its text tells.
const isDark = (node) =>
  bright(
    ...getComputedStyle(node)
      .color.match(/[\d.]+/g)
      .map(Number),
  );

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// 257 colours, so that there is one in the middle, as one integer each (ABGR, as canvases keep them), along stops at equal distances.
function ramp(stops) {
  const table = new Uint32Array(257);
  for (let i = 0; i < 257; i++) {
    const at = (i / 256) * (stops.length - 1),
      low = Math.min(Math.floor(at), stops.length - 2);
    const [r, g, b] = channels(stops[low]).map((from, c) => Math.round(from + (channels(stops[low + 1])[c] - from) * (at - low)));
    table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

// Dark pages begin at the page's own dark and end light, but not so light that two colours meet.
function rampsOf(look, dark) {
  const onPage = (stops) => (dark ? [look.dark, ...stops.slice(3).reverse()] : stops);
  const blue = onPage(look.blue),
    orange = onPage(look.orange);
  return { blue: ramp(blue), orange: ramp(orange), diverging: ramp([...orange.slice(1).reverse(), ...blue]) };
}

// The colour of a place on a scale: from 0 to 1, of a diverging one from -1 to 1.
function colourAt(table, place, diverging) {
  return table[Math.round(256 * (diverging ? (1 + place) / 2 : place))];
}

const css = (colour) => `rgb(${colour & 255}, ${(colour >> 8) & 255}, ${(colour >> 16) & 255})`;

function polygon(context, ...corners) {
  context.beginPath();
  for (const corner of corners) context.lineTo(...corner);
  context.fill();
}

// A number of at most so many digits.
function digits(value, most) {
  const text = Number.isFinite(value) ? String(Number(value.toPrecision(most))) : `${value < 0 ? "-" : ""}∞`;
  return text.replaceAll("-", "−");
}

// A bar of colours with its ends and zero, pointed where values lie beyond; `place` says where on its scale a value is.
function colourBar({ table, diverging, low, high, place, below, above, ink, label }) {
  const canvas = element("canvas", { display: "block" }, { role: "img", "aria-label": label }),
    ratio = window.devicePixelRatio || 1,
    [wide, thick, edge] = [120, 10, 24];
  sized(canvas, wide + 2 * edge, thick + 14);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const x = (value) => edge + ((value - low) / (high - low)) * wide;
  const fill = (value) => (context.fillStyle = css(colourAt(table, place(value), diverging)));
  for (let step = 0; step < wide * ratio; step++) {
    fill(low + ((step + 0.5) / (wide * ratio)) * (high - low));
    context.fillRect(edge + step / ratio, 0, 1 / ratio, thick);
  }
  if (below && fill(low)) polygon(context, [edge, 0], [edge - 8, thick / 2], [edge, thick]);
  if (above && fill(high)) polygon(context, [edge + wide, 0], [edge + wide + 8, thick / 2], [edge + wide, thick]);
  context.fillStyle = ink;
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "center";
  const ends = [low, high].filter((value) => value !== 0);
  if (ends.every((end) => Math.abs(x(end) - x(0)) > 24)) ends.push(0);
  for (const value of ends) {
    context.fillRect(Math.min(x(value), edge + wide - 1), thick, 1, 3);
    context.fillText(digits(value, 2), x(value), thick + 12);
  }
  return canvas;
}
