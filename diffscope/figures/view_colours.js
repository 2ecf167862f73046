// Colours of values: scales, ramps along which a value goes from zero to the end, and a bar that shows them.

// Where on its ramp a value is, from 0 to 1, by its share of the end; and the value that stands at a place.
const SCALES = {
  root: { label: "root", place: Math.sqrt, value: (at) => at * at },
  raw: { label: "raw", place: (share) => share, value: (at) => at },
  log: { label: "log", place: (share) => Math.max(0, 1 + Math.log10(share) / 4), value: (at) => 10 ** (4 * (at - 1)) },
  share: { label: "row share", place: Math.sqrt, value: (at) => at * at, shares: true },
};
const STEPS = 257; // an odd number: of a signed ramp the middle one is zero
const ZERO = 128;

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0; // as canvases keep it

// Colours along stops at equal distances, as one integer each.
function ramp(stops) {
  return Uint32Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const high = channels(stops[low + 1]);
    return packed(channels(stops[low]).map((from, c) => Math.round(from + (high[c] - from) * (at - low))));
  });
}

// Dark pages begin at the page's own dark and end light, but not so light that two colours meet.
function rampsOf(look, dark) {
  const turned = (stops) => (dark ? [look.dark, ...stops.slice(3).reverse()] : stops);
  const blue = turned(look.blue);
  const orange = turned(look.orange);
  const [below, above] = dark ? look.beyondDark : look.beyond;
  return {
    blue: { table: ramp(blue), first: 0, below: above, above },
    orange: { table: ramp(orange), first: 0, below, above: below },
    diverging: { table: ramp([...orange.slice(1).reverse(), ...blue]), first: -1, below, above },
  };
}

// Colours of spans and heads are for light pages; on dark ones they come nearer to white.
function onPage(colour, dark) {
  return dark ? `rgb(${channels(colour).map((part) => Math.round(0.6 * part + 0.4 * 255))})` : colour;
}

// The colour of a value by its ramp: beyond the end it is one that the ramp does not have.
function colouring({ table, first, below, above }, scale, limit) {
  const { place } = SCALES[scale];
  const [under, over] = [packed(channels(below)), packed(channels(above))];
  return (value) => {
    const size = Math.abs(value) / limit;
    if (size > 1) return value < 0 ? under : over;
    const at = place(size);
    return table[Math.round(first < 0 ? ZERO + (value < 0 ? -ZERO : ZERO) * at : (STEPS - 1) * at)];
  };
}

// The colours of a map under it: from zero, or from the negative end, to the end, with an arrow where values go on beyond it.
class ColourBar {
  constructor() {
    this.box = element("div", { fontSize: "11px", lineHeight: "1.3" });
    this.canvas = element("canvas", { display: "block", width: "100%", height: "9px" }, { role: "img" });
    this.labels = element("div", { display: "flex", justifyContent: "space-between", opacity: 0.85 }, { "aria-hidden": "true" });
    this.box.append(this.canvas, this.labels);
  }

  draw(colours, { scale, limit, clipped, title, width }) {
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(9 * ratio)];
    const { width: long, height: high } = this.canvas;
    const left = clipped && colours.first < 0 ? high : 0;
    const right = long - (clipped ? high : 0);
    const image = context.createImageData(right - left, high);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++)
      pixels[i] = colours.table[Math.round((((i % (right - left)) + 0.5) / (right - left)) * (STEPS - 1))];
    context.putImageData(image, left, 0);
    if (right < long) this.arrow(context, right, long, high, colours.above);
    if (left) this.arrow(context, left, 0, high, colours.below);
    const middle = SCALES[scale].value(0.5) * limit;
    const texts = colours.first < 0 ? [-limit, 0, limit] : [0, middle, limit];
    const show = (value) => (SCALES[scale].shares ? percent(value) : number(value));
    this.labels.replaceChildren(...texts.map((value) => element("span", {}, {}, show(value))));
    const ends = `colours of ${title} from ${show(texts[0])} to ${show(limit)}`;
    const beyond = clipped ? "; larger values have the colour of the arrow" : "";
    this.canvas.setAttribute("aria-label", ends + beyond);
    this.canvas.title = ends + beyond;
  }

  arrow(context, from, to, high, colour) {
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(from, 0);
    context.lineTo(to, high / 2);
    context.lineTo(from, high);
    context.fill();
  }
}
