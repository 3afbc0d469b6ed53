/**
 * Why a command as a whole is refused: the stable words with which `reason` of its receipt begins.
 * `retry`: whether the same command may be taken a moment later.
 */
export const REFUSALS = {
  malformed: {
    retry: false,
    meaning: "the body is no JSON or MessagePack, or a member is missing or of another kind",
  },
  unknown_type: { retry: false, meaning: "`type` is none of the commands" },
  too_large: { retry: false, meaning: "more bytes, blocks or sources than one command may have" },
  too_deep: { retry: false, meaning: "lists or objects lie too deep in each other" },
  forbidden: { retry: false, meaning: "the sender's role does not include this command" },
  unproven: {
    retry: false,
    meaning: "the issuer has to prove its name, and the signature or the subject does not",
  },
  replayed: {
    retry: false,
    meaning: "a signed command of this `id` was taken before, and its receipt is not kept",
  },
  implausible: {
    retry: false,
    meaning: "its `epoch` or `seq` is neither a counter up to 2^40 nor a time",
  },
  broadcast_refused: {
    retry: false,
    meaning: "the configuration does not let this command come by broadcast",
  },
  expired: { retry: false, meaning: "it came after its `not_after`" },
  rate_limited: {
    retry: true,
    meaning: "this issuer, or this token, sends more commands a second than it may",
  },
  id_reused: {
    retry: false,
    meaning: "another command with this `id` came from the same issuer before",
  },
  stale: {
    retry: false,
    meaning: "its `seq` is not above that of a command of the same issuer and epoch before it",
  },
  fenced: { retry: false, meaning: "this issuer has shown a higher `epoch`: another took over" },
  busy: { retry: true, meaning: "as many commands are at work as may be, or the agent stops" },
  internal: { retry: true, meaning: "an error of ours, in the log; it may be carried out in part" },
} as const satisfies Record<string, { readonly retry: boolean; readonly meaning: string }>;

export type RefusalWord = keyof typeof REFUSALS;

/** `words` are for people: one line, no secrets. */
export interface Refusal {
  readonly word: RefusalWord;
  readonly words: string;
}

/** Whether the command of a receipt was refused for something that may be over a moment later. */
export function isRefusedForNow({ status, reason = "" }: { status: string; reason?: string }) {
  const word = reason.slice(0, reason.indexOf(":"));
  return status === "rejected" && word in REFUSALS && REFUSALS[word as RefusalWord].retry;
}

/** As it stands in a receipt. */
export function reasonOf({ word, words }: Refusal): string {
  return `${word}: ${words}`;
}
