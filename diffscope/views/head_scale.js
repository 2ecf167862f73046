// The scale of a statistic in a grid of heads: its numbers in few digits, the range of its colours, and a bar that shows them.

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

// A bar of colours with its ends and zero, pointed where values lie beyond; `place` says where on its scale a value is.
function rangeBar({ ramp, low, high, place, below, above, ink, label }) {
  const canvas = element("canvas", { display: "block" }, { role: "img", "aria-label": label }),
    ratio = window.devicePixelRatio || 1,
    [wide, thick, edge] = [120, 10, 24];
  sized(canvas, wide + 2 * edge, thick + 14);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const x = (value) => edge + ((value - low) / (high - low)) * wide;
  const fill = (value) => (context.fillStyle = css(colourAt(ramp, place(value))));
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
