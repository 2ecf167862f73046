// The scale of a statistic in a grid of heads: its numbers in few digits, the range of its colours, and a bar that shows them.

const WIDE = 140; // pixels of a bar

// A number of at most so many digits.
function digits(value, most) {
  const text = Number.isFinite(value) ? String(Number(value.toPrecision(most))) : `${value < 0 ? "-" : ""}∞`;
  return text.replaceAll("-", "−");
}

// Two digits, which fit into a cell.
function short(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return digits(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "0";
  if (size < 0.005 || size >= 9999.5) return sign + size.toExponential(0).replace("e+", "e").replace("-", "−");
  if (size < 0.995) return sign + size.toFixed(2);
  return sign + size.toFixed(size < 9.95 ? 1 : 0);
}

// What the colours of values span, up to a limit on both sides, and how many values lie beyond or are undefined.
function rangeOf(values, limit) {
  const defined = values.filter((value) => !Number.isNaN(value)),
    low = defined.reduce((least, value) => Math.min(least, value), 0),
    high = defined.reduce((most, value) => Math.max(most, value), 0);
  const below = defined.filter((value) => value < -limit).length,
    above = defined.filter((value) => value > limit).length;
  const range = { limit, low: Math.max(-limit, low), high: Math.min(limit, high) };
  if (low === high) range.high = limit;
  return { ...range, below, above, count: defined.length, missing: values.length - defined.length };
}

// A bar of the colours from one value to another, with both and zero; `place` says where on its ramp a value is.
function rangeBar(ramp, { low, high, place, below, above, label }) {
  const bar = new ColourBar();
  const share = (value) => (value - low) / (high - low);
  const marks = [low, high].map((value) => [share(value), digits(value, 2)]);
  if (Math.min(share(0), 1 - share(0)) * WIDE > 24) marks.push([share(0), "0"]); // pixels of a number
  bar.draw(ramp, { marks, label, width: WIDE, below, above, place: (at) => place(low + at * (high - low)) });
  return bar.box;
}
