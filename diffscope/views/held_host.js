// What a host calls to let its page hold heads.

export function mount(host, bundle, emit) {
  return new HeldHeads(bundle, emit);
}
