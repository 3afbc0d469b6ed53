import type { BlockName } from "../core/index.ts";
import type { Command, UnnamedBlock } from "./command.ts";

const HASH_WORDS = 3;
const KEY_WORDS = 10;
const TAG = { hash: 1, key: 2 } as const;
/** Names of most commands; more take memory of their own. */
const NAMES_AT_HAND = 256;
const atHand = new Uint32Array(NAMES_AT_HAND * KEY_WORDS);

/**
 * What a command asks for, in 64 bits: two with one id are the same where these are. When and by
 * whom it was sent, its epoch and number, and how it was written are not part of it. The hash is
 * XXH64, which whoever wants to can make collide: with commands of their own id and issuer.
 */
export function commandDigest(command: Command, unnamed: readonly UnnamedBlock[]): string {
  let text = `${command.type}\0${command.owner ?? ""}\0${membersOf(command)}`;
  for (const { given } of unnamed) text += `\0${given}`;
  const words = wordsOf(namesOf(command));
  return Bun.hash.xxHash64(words, Bun.hash.xxHash64(text)).toString(16);
}

function membersOf(command: Command): string {
  switch (command.type) {
    case "Warm":
      return `${command.target}\0${command.sources.join("\0")}`;
    case "Cache": {
      const { action } = command;
      if (action.kind === "unpin") return "unpin";
      if (action.kind === "pin") return `pin ${action.ttlMs}`;
      return `retain ${action.priority} ${action.idleMs}`;
    }
    case "Think":
      return `${command.transient}`;
    case "Pause":
    case "RenewLease":
      return `${command.ttlMs} ${command.leaseId}`;
    case "RevokeLease":
      return command.leaseId;
    case "Prune":
    case "Flush":
      return "";
    default:
      return command satisfies never;
  }
}

function namesOf(command: Command): readonly BlockName[] {
  if (command.type === "Prune") return [command.after];
  return "blocks" in command ? command.blocks : [];
}

/** The same for one name, however it was given. */
function wordsOf(names: readonly BlockName[]): Uint32Array {
  const words = names.length <= NAMES_AT_HAND ? atHand : new Uint32Array(names.length * KEY_WORDS);
  const bytes = new Uint8Array(words.buffer);
  let at = 0;
  for (const name of names) {
    if (name.kind === "hash") {
      words[at] = TAG.hash;
      words[at + 1] = name.lo;
      words[at + 2] = name.hi;
      at += HASH_WORDS;
    } else {
      words[at] = TAG.key;
      words[at + 1] = name.layer;
      bytes.set(name.bytes, (at + 2) * 4);
      at += KEY_WORDS;
    }
  }
  return words.subarray(0, at);
}
