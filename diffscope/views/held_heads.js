// Heads that a page holds, so that its views show another one without asking their host.
//
// The bundle is written by diffscope/views/attention.py. Hosts call mount(element, bundle); the element stays empty.

// Takes the heads of a bundle, and returns their places.
function hold(bundle) {
  const { prompt, tensors } = opened(bundle);
  return Object.entries(tensors).map(([place, buffer]) => {
    const key = `${prompt} ${place}`;
    HELD.set(key, buffer);
    return key;
  });
}

class HeldHeads {
  constructor(bundle) {
    this.places = [];
    this.update(bundle);
  }

  update(bundle) {
    this.leave();
    this.places = hold(bundle);
  }

  leave() {
    for (const place of this.places) HELD.delete(place);
  }
}
