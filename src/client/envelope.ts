import { type Random, systemRandom } from "../core/index.ts";
import type { WireCommand } from "./control-client.ts";

const ID_WORDS = 4;

/** 32 bits for each word, in hex. */
export function randomHex(random: Random, words: number): string {
  let hex = "";
  for (let word = 0; word < words; word++) hex += random.u32().toString(16).padStart(8, "0");
  return hex;
}

/** 128 random bits in hex, for the `id` of a command. */
export function newCommandId(random: Random = systemRandom): string {
  return randomHex(random, ID_WORDS);
}

/** The command with an id of 128 random bits and an issuer, unless it has its own. */
export function identified(
  command: WireCommand,
  random: Random,
  issuer: string | null,
): WireCommand {
  const id = command.id === undefined ? { id: newCommandId(random) } : {};
  const by = issuer === null || command.issuer !== undefined ? {} : { issuer };
  return { ...command, ...id, ...by };
}
