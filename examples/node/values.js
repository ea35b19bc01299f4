// gymhost's `Value` messages as what JavaScript has. Tensors are left as they are.

export function encode(value) {
  if (value === null || value === undefined) return {};
  if (typeof value === "boolean") return { boolean: value };
  if (typeof value === "string") return { text: value };
  if (typeof value === "number") return Number.isInteger(value) ? { integer: value } : { float: value };
  if (Array.isArray(value)) return { list: { items: value.map(encode) } };
  return { map: { names: Object.keys(value), values: Object.values(value).map(encode) } };
}

export function decode(value) {
  switch (value?.kind) {
    case undefined:
      return null;
    case "integer":
      return Number(value.integer);
    case "list":
    case "tuple":
      return value[value.kind].items.map(decode);
    case "map":
      return fromMap(value.map);
    default:
      return value[value.kind];
  }
}

// A dict of Python's: its keys are mostly texts.
function fromMap({ names, keys, values }) {
  const all = names.length ? names : keys.map(decode);
  return Object.fromEntries(all.map((key, index) => [key, decode(values[index])]));
}
