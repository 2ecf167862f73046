// Views of one group on a page, whatever put them there. All have one scale; those of the same tokens are looked at together.

const VIEWS = (window.diffscopeViews ??= new Set()); // of the page: each host may load this module for itself

// A view with all others of its group.
function grouped(view) {
  if (!view.data.group) return [view];
  const others = [...VIEWS].filter((each) => each !== view && each.data.group === view.data.group && each.root.isConnected);
  return [view, ...others];
}

// Those of them that show the same tokens.
function linked(view) {
  const { text, queries, keys } = view.data;
  return grouped(view).filter(({ data }) => data.text === text && data.queries === queries && data.keys === keys);
}

// The one that stands first on the page: it has the controls that all of them share.
function leader(view) {
  const host = ({ root }) => root.getRootNode().host ?? root; // a host may keep each view in a tree of its own
  const before = (first, second) => host(first).compareDocumentPosition(host(second)) & Node.DOCUMENT_POSITION_FOLLOWING;
  return grouped(view).reduce((first, other) => (before(other, first) ? other : first));
}
