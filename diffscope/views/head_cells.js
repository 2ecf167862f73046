// How one head looks in a grid of heads: its map as a small picture, its value as a colour with the number, a cross if it is off.
// A box is where it is drawn: x, y, width and height in the pixels of the canvas.

const LETTERS = 11; // pixels of the page

// A map in as many pixels as there are: each shows the value of largest magnitude that falls on it.
function drawPicture(context, box, { levels, visible, queries, keys, signed, ramp, none }) {
  const side = Math.min(box.width, box.height),
    image = context.createImageData(side, side),
    pixels = new Uint32Array(image.data.buffer),
    [zero, most] = signed ? [127, 127] : [0, 255];
  const from = (at, count) => Math.floor((at * count) / side);
  const to = (at, count) => Math.max(from(at, count), from(at + 1, count) - 1);
  for (let y = 0; y < side; y++)
    for (let x = 0; x < side; x++) {
      let strongest = null;
      for (let query = from(y, queries); query <= to(y, queries); query++)
        for (let key = from(x, keys); key <= to(x, keys); key++) {
          const at = query * keys + key;
          if (visible[at] && (strongest === null || Math.abs(levels[at] - zero) > Math.abs(strongest)))
            strongest = levels[at] - zero;
        }
      pixels[y * side + x] = strongest === null ? none : colourAt(ramp, strongest / most);
    }
  context.putImageData(image, box.x, box.y);
}

// A value as a colour, with its number if that fits; a triangle in the corner if it lies beyond the colours.
function drawValue(context, { x, y, width, height }, { value, colour, beyond, room }) {
  const ratio = window.devicePixelRatio || 1;
  context.fillStyle = css(colour);
  context.fillRect(x, y, width, height);
  context.fillStyle = inkOn(colour);
  if (beyond) {
    const right = x + width,
      size = Math.min(7 * ratio, height, width),
      [flat, tip] = value > 0 ? [y + size, y] : [y, y + size];
    polygon(context, [right - size, flat], [right, flat], [right - size / 2, tip]);
  }
  if (height < (LETTERS + 3) * ratio || width < room + 4 * ratio) return;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(short(value), x + width / 2, y + height / 2 + 0.5 * ratio);
}

// What cells without a value are filled with.
function hatching(context, none, dark) {
  const tile = new OffscreenCanvas(6, 6),
    drawing = tile.getContext("2d");
  drawing.fillStyle = none;
  drawing.fillRect(0, 0, 6, 6);
  drawing.strokeStyle = dark ? "#5b6472" : "#9aa3b2";
  drawing.beginPath();
  for (const from of [-6, 0, 6]) {
    drawing.moveTo(from - 1, 7);
    drawing.lineTo(from + 7, -1);
  }
  drawing.stroke();
  return context.createPattern(tile, "repeat");
}

// A head that is off is faded and crossed out.
function drawCross(context, { x, y, width, height }, ink, paper) {
  context.globalAlpha = 0.6;
  context.fillStyle = paper;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
  context.strokeStyle = ink;
  context.lineWidth = 1.5 * (window.devicePixelRatio || 1);
  context.beginPath();
  context.moveTo(x + 1, y + 1);
  context.lineTo(x + width - 1, y + height - 1);
  context.moveTo(x + width - 1, y + 1);
  context.lineTo(x + 1, y + height - 1);
  context.stroke();
}

// A line around a head, between two of the page's colour so that it is seen on any cell.
function drawFrame(context, { x, y, width, height }, ink, paper, thick, dash) {
  const ratio = window.devicePixelRatio || 1;
  context.strokeStyle = paper;
  context.lineWidth = (thick + 2) * ratio;
  context.strokeRect(x, y, width, height);
  context.strokeStyle = ink;
  context.lineWidth = thick * ratio;
  context.setLineDash(dash.map((part) => part * ratio));
  context.strokeRect(x, y, width, height);
  context.setLineDash([]);
}
