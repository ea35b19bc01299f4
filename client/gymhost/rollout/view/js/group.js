// A group side by side: several rollouts of one task, what each was worth, and where they part.

const SIDE_BY_SIDE = 4; // How many are beside each other at first.

/** The place of the first message in which two conversations differ, or -1. */
function parting(one, other) {
  const end = Math.max(one.length, other.length);
  for (let i = 0; i < end; i++) {
    if (JSON.stringify(one[i]) !== JSON.stringify(other[i])) return i;
  }
  return -1;
}

/** That place in words: the turn that a message belongs to, turns being counted by what the model said. */
function partingWords(messages, at) {
  if (at < 0) return "nowhere";
  const turn = messages.slice(0, at).filter((message) => message.role === "assistant").length;
  const own = messages[at]?.role === "assistant" || at >= messages.length;
  if (own) return `in turn ${turn + 1}`;
  return turn ? `after turn ${turn}` : "in the prompt";
}

async function groupView(line, open) {
  const members = store.groups.get(groupKey(line));
  if (members.length < 2) {
    return h("p.empty", {}, "This rollout is alone: no other one of its group, or of its task with the same seed, is in the page.");
  }
  const conversations = new Map();
  for (const [i, one] of (await Promise.all(members.map((member) => store.source.conversation(member.n)))).entries()) {
    conversations.set(members[i].n, one);
  }
  const own = conversations.get(line.n).messages;
  const chosenOnes = new Set([line, ...members.filter((member) => member !== line)].slice(0, SIDE_BY_SIDE).map((member) => member.n));
  const names = [...new Set(members.flatMap((member) => Object.keys(conversations.get(member.n).rewards)))];
  const best = Math.max(...members.map((member) => member.reward ?? -Infinity));
  const grid = h("div");
  const draw = () => fill(grid, sideBySide(members.filter((member) => chosenOnes.has(member.n)), conversations, open));

  const head = ["", "#", "outcome", "reward", ...names, "turns", "tokens", "time", `parts from #${line.index}`];
  const table = h("table", {}, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, members.map((member) => {
      const { rewards, messages } = conversations.get(member.n);
      const box = h("input", { type: "checkbox", "aria-label": `Show number ${member.index} beside the others`,
        onchange: (event) => {
          chosenOnes[event.target.checked ? "add" : "delete"](member.n);
          draw();
        } });
      box.checked = chosenOnes.has(member.n);
      const cells = [box, h("button.link", { type: "button", onclick: () => open(member) }, String(member.index)), badge(member, true),
        h(member.reward === best ? "b" : "span", {}, reward(member.reward)),
        ...names.map((name) => (name in rewards ? reward(rewards[name]) : "–")),
        number(member.turns), number(member.tokens), seconds(member.seconds),
        member === line ? "–" : partingWords(own, parting(own, messages))];
      return h("tr", { "aria-current": member === line ? "true" : null }, cells.map((cell) => h("td", {}, cell)));
    })));
  draw();
  return h("div.group", {},
    h("p.muted", {}, `${plural(members.length, "rollout")} ${line.group === null ? "of one task and seed" : `of group ${line.group}`}, `
      + `${meanReward(members)}.`),
    h("div.wide", {}, table), grid);
}

/** The messages of some rollouts in columns: what they have in common folded, then each after the point where they part. */
function sideBySide(members, conversations, open) {
  if (members.length < 2) return [h("p.empty", {}, "Choose two or more above to see them side by side.")];
  const all = members.map((member) => conversations.get(member.n));
  const [first, ...others] = all.map((conversation) => conversation.messages);
  const places = others.map((messages) => parting(first, messages)).filter((place) => place >= 0);
  const parts = places.length ? Math.min(...places) : first.length;
  const turnOf = all.map((conversation) => turnsOf(conversation.messages, conversation.turns));
  const cell = (i, at) => {
    const message = all[i].messages[at];
    if (!message) return h("div.cell.nothing");
    const turn = turnOf[i].get(at);
    // What is as in the first column is there to be compared, not to be read again.
    const same = i > 0 && JSON.stringify(message) === JSON.stringify(first[at]);
    return h(same ? "div.cell.same" : "div.cell", {}, messageView(message, all[i].turns[turn], turn, null));
  };
  const common = h("details.common", {}, h("summary", {}, parts === 0 ? "They have no message in common." : places.length
    ? `The first ${plural(parts, "message is", "messages are")} the same in all; they part ${partingWords(first, parts)}.`
    : "They are all the same, to the end."), first.slice(0, parts).map((message) => messageView(message)));
  const columns = h("div.columns", {}, members.map((member) => h("div.cell.title", {},
    h("button.link", { type: "button", onclick: () => open(member) }, `#${member.index}`), " ", badge(member, true),
    " reward ", h("b", {}, reward(member.reward)))));
  columns.style.setProperty("--count", members.length);
  for (let at = parts; at < Math.max(...all.map((conversation) => conversation.messages.length)); at++) {
    columns.append(...members.map((_, i) => cell(i, at)));
  }
  return [common, h("div.wide", {}, columns)];
}
