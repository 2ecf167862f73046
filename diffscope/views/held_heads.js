// Heads that a page holds, so that its views show another one without asking their host.
//
// Bundles are written by diffscope/views/attention.py. Hosts call mount(element, bundle, emit); the element stays empty. Of a large
// capture the bundles come one after the other: "wanted", {layer, head}, asks for the head beside the one that is shown.

const MOST_HELD = 16; // heads of a large capture
const AT_REST = 150; // milliseconds after what the host has sent last
const NEXT = [[0, 1], [0, -1], [1, 0], [-1, 0], [0, 2], [0, -2]]; // layers down and heads to the right, in this order

// Takes the heads of a bundle, and returns their places.
function hold({ prompt, tensors }) {
  return Object.entries(tensors).map(([place, buffer]) => {
    const key = `${prompt} ${place}`;
    HELD.set(key, buffer);
    return key;
  });
}

class HeldHeads {
  constructor(bundle, emit) {
    this.emit = emit || (() => {});
    this.places = [];
    HOLDERS.add(this);
    this.update(bundle);
  }

  update(bundle) {
    this.bundle = opened(bundle);
    const about = `${this.bundle.prompt} ${this.bundle.about}`;
    if (about !== this.about) this.release();
    this.about = about;
    const come = hold(this.bundle);
    this.places = [...this.places.filter((place) => !come.includes(place)), ...come];
    if (!this.bundle.beside) return;
    while (this.places.length > MOST_HELD) HELD.delete(this.places.shift());
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.ask(), AT_REST);
  }

  // Asks for the first of the heads beside that is not held.
  ask() {
    const { prompt, beside } = this.bundle;
    const next = NEXT.map((by) => neighbour(beside, beside, ...by)).find(
      ({ layer, head }) => !HELD.has(placeOfHead(prompt, layer, head)) && !(layer === beside.layer && head === beside.head),
    );
    if (next) this.emit("wanted", next);
  }

  release() {
    for (const place of this.places) HELD.delete(place);
    this.places = [];
  }

  leave() {
    clearTimeout(this.resting);
    HOLDERS.delete(this);
    this.release();
  }
}
