import { messageOf } from "../../core/index.ts";
import type { DurableOutcome } from "../durable.ts";

const WHY_CHARACTERS_MAX = 300;
/** What the libraries say where no answer came, in whichever of their error classes. */
const NO_STREAM = /no responders|jetstream is not enabled/i;
const NO_ANSWER = /timeout|disconnect|closed|connection|draining/i;

/** Whether the broker refused, or did not answer, by what a client library threw. */
export function refusal(thrown: unknown): Exclude<DurableOutcome, { kind: "acknowledged" }> {
  const why = whyOf(thrown);
  return NO_ANSWER.test(why) ? { kind: "unreachable" } : { kind: "refused", why };
}

/** The libraries' own words, and their codes where those are words. */
function whyOf(thrown: unknown): string {
  const { code } = thrown as { code?: unknown };
  const message = messageOf(thrown);
  // One library says no more than "503" where nobody listens, the other one more than it knows.
  if (code === "503" || NO_STREAM.test(message)) return "no stream of the server takes it";
  return message.slice(0, WHY_CHARACTERS_MAX);
}
