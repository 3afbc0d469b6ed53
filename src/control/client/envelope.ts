import { type Clock, type Random, systemRandom } from "../../core/index.ts";
import { CLOCK_SKEW_SECONDS, SIGNED_SECONDS_MAX } from "../index.ts";
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

/** What is put beside a command's own members. */
export interface Identity {
  readonly random: Random;
  readonly issuer: string | null;
  /** Commands get `not_after`, as signed ones need it; null: they get none. */
  readonly clock: Clock | null;
}

/** The command with an id of 128 random bits, an issuer and an end, unless it has its own. */
export function identified(
  command: WireCommand,
  { random, issuer, clock }: Identity,
  deadlineMs: number,
): WireCommand {
  const id = command.id === undefined ? { id: newCommandId(random) } : {};
  const by = issuer === null || command.issuer !== undefined ? {} : { issuer };
  const hasEnd = clock === null || command.not_after !== undefined;
  return { ...command, ...id, ...by, ...(hasEnd ? {} : endOf(clock, deadlineMs)) };
}

/** A while behind the deadline, so that clocks may differ; no later than agents take. */
function endOf(clock: Clock, deadlineMs: number): { readonly not_after: number } {
  const seconds = Math.min(SIGNED_SECONDS_MAX, deadlineMs / 1_000 + CLOCK_SKEW_SECONDS);
  return { not_after: Math.ceil(clock.wallMs() / 1_000 + seconds) };
}
