// Where the data come from. A dashboard that serves them offers the same four functions over `fetch`.

/**
 * The data that are in the page itself.
 *
 * index(): {title, settings, leftOut, rollouts}, read at once.
 * conversation(n), tokens(n): of one rollout, read when it is shown.
 * pieces(): the text of each token id.
 */
function embedded() {
  const text = (id) => {
    const element = byId(id);
    if (!element) throw new Error(`the page has no ${id}: it was cut off`);
    return element.textContent;
  };
  return {
    index: async () => JSON.parse(text("index"), exactly),
    conversation: async (n) => JSON.parse(await unpack(text(`conversation-${n}`)), exactly),
    tokens: async (n) => JSON.parse(await unpack(text(`tokens-${n}`))),
    pieces: async () => JSON.parse(await unpack(text("pieces"))),
  };
}

/** A text that was deflated and written in base64. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

/** Keeps an integer that JavaScript's numbers can't hold, such as a seed of 64 bits, as the text that it was. */
function exactly(key, value, context) {
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? context?.source ?? value : value;
}

/** What `read` gave lately, so that going back and forth costs nothing. */
function remembering(read, count) {
  const kept = new Map();
  return (key) => {
    const value = kept.get(key) ?? read(key);
    kept.delete(key);
    kept.set(key, value);
    if (kept.size > count) kept.delete(kept.keys().next().value);
    return value;
  };
}

/** What the page knows: the source of data with what was read lately, and the index once it is there. */
const store = { source: null, index: null, rollouts: [], groups: new Map() };

async function openStore(source) {
  store.source = {
    conversation: remembering(source.conversation, 128),
    tokens: remembering(source.tokens, 16),
    pieces: remembering(source.pieces, 1),
  };
  store.index = await source.index();
  store.rollouts = store.index.rollouts;
  store.rollouts.forEach((line, n) => {
    line.n = n;
    const key = groupKey(line);
    if (!store.groups.has(key)) store.groups.set(key, []);
    store.groups.get(key).push(line);
  });
  for (const members of store.groups.values()) members.sort((a, b) => a.index - b.index || a.n - b.n);
}

/** Rollouts of one group, or else of one task, are the ones to compare. */
function groupKey(line) {
  return JSON.stringify(line.group === null ? [line.env, line.split, line.task, line.seed] : [line.env, line.group]);
}
