import type { Host, Named, Read } from "../host.ts";

/** A system prompt, tools and examples: what is worth a pin. Then what is not. */
export const PROMPT: readonly Named[] = [
  { name: "system", hash: 111n },
  { name: "system/tools", hash: 222n },
  { name: "system/tools/shots", hash: 333n },
];
export const UNPINNED: readonly Named[] = [
  { name: "other", hash: 911n },
  { name: "other/turn", hash: 922n },
];
export const SESSION: readonly Named[] = [
  { name: "session", hash: 666n },
  { name: "session/turn", hash: 777n },
];
/** An answer, and what was thought on the way to it. */
export const ANSWER: Named = { name: "answer" };
export const THOUGHTS: readonly Named[] = [
  { name: "answer/think", hash: 444n },
  { name: "answer/think/on", hash: 555n },
];
/** What was said up to a place, and what followed it there. */
export const PREFIX: readonly Named[] = [{ name: "chat" }, { name: "chat/a", hash: 1234567890n }];
export const FOLLOWING: readonly Named[] = [
  { name: "chat/a/b" },
  { name: "chat/a/b/c" },
  { name: "chat/a/d" },
];
export const DOC: readonly Named[] = [{ name: "doc" }, { name: "doc/page" }];

export const namesOf = (blocks: readonly Named[]) => blocks.map(({ name }) => name);
export const all = (word: Read, blocks: readonly Named[]) => blocks.map(() => word);

export async function tiersOf(host: Host, blocks: readonly Named[]): Promise<string[]> {
  return Promise.all(blocks.map(({ name }) => host.tiersOf(name)));
}
