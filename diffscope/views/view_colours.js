// Colours of values: by which scale a value goes from zero to the end of its ramp, and what is written along the ramp.

// Where on its ramp a value is, from 0 to 1, by its share of the end; and the value that stands at a place.
const SCALES = {
  raw: { label: "linear", place: (share) => share, value: (at) => at },
  root: { label: "root", place: Math.sqrt, value: (at) => at * at },
  log: { label: "log", place: (share) => Math.max(0, 1 + Math.log10(share) / 4), value: (at) => 10 ** (4 * (at - 1)) },
  share: { label: "share of row", place: Math.sqrt, value: (at) => at * at, shares: true },
};
// The colour of a value by its ramp; beyond the end it is that of the end.
function colouring(ramp, scale, limit) {
  const { place } = SCALES[scale];
  return (value) => {
    const at = place(Math.min(1, Math.abs(value) / limit));
    return colourAt(ramp, ramp.diverging && value < 0 ? -at : at);
  };
}

// What a bar of a ramp says: from zero, or from the negative end, to the end.
function legend({ diverging }, { scale, limit, clipped, title }) {
  const show = (value) => (SCALES[scale].shares ? percent(value) : number(value));
  const middle = SCALES[scale].value(0.5) * limit;
  const texts = (diverging ? [-limit, 0, limit] : [0, middle, limit]).map(show);
  const beyond = clipped ? "; larger values have the colour of the end" : "";
  const marks = texts.map((text, i) => [i / 2, text]);
  return { marks, below: clipped && diverging, above: clipped, label: `colours of ${title} from ${texts[0]} to ${texts[2]}${beyond}` };
}
