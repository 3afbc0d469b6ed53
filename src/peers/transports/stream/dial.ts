import { type Clock, messageOf } from "../../../core/index.ts";
import type { Cipher, Lanes } from "../../../native/index.ts";
import type { DialTarget, LinkFault } from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { AskerLink, dialLine } from "../line/index.ts";
import { AskerLanes } from "./asker-lanes.ts";
import {
  CONTROL_VERSION,
  type ControlMessage,
  STREAM_CODEC,
  type StreamMessage,
} from "./control/index.ts";
import type { StreamLimits } from "./limits.ts";
import { STREAM_PROTOCOL } from "./protocol.ts";

export interface DialOptions {
  readonly trust: Trust;
  readonly lanes: Lanes;
  /** Those that this side accepts, the best first. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
  readonly clock: Clock;
  readonly limits: StreamLimits;
}

export type StreamDialled =
  | { readonly ok: true; readonly link: AskerLink<StreamMessage>; readonly der: Uint8Array }
  | { readonly ok: false; readonly fault: LinkFault };

type Welcome = Extract<StreamMessage, { kind: "welcome" }>;

/** Certificates, hello, lanes: a link is given out when all of them stand. */
export async function dialStream(
  target: DialTarget,
  options: DialOptions,
  signal: AbortSignal,
): Promise<StreamDialled> {
  const { trust, clock, limits, ciphers, lanes, lanesMax } = options;
  const own = { trust, clock, limits, protocol: STREAM_PROTOCOL, codec: STREAM_CODEC };
  const dialled = await dialLine(target, own, signal);
  if (!dialled.ok) return dialled;
  const { dialling, identity, der } = dialled.value;
  const startMs = clock.monotonicMs();
  const hello = { kind: "hello", version: CONTROL_VERSION, lanes: lanesMax, ciphers } as const;
  const welcome = await dialling.greet(hello, (message) => readWelcome(message, options));
  if (!welcome.ok) return dialling.giveUp(welcome.fault);
  const rttMs = clock.monotonicMs() - startMs;
  const { session, port, requests } = welcome.value;
  const coming = lanes.dial(session, dialling.address, port, limits.setUpMs);
  const opened = await dialling.wait(coming, (thrown) => `its lanes: ${messageOf(thrown)}`);
  if (!opened.ok) return dialling.giveUp(opened.fault);
  const { line } = dialling;
  const payload = new AskerLanes({ link: opened.value, line, clock, limits });
  const parts = { identity, line, payload, clock, limits, requests, rttMs };
  const link = new AskerLink({ transport: "stream", ...parts });
  dialling.handTo(link);
  opened.value.ended.then((fault) => link.end("broken", `the lanes ended: ${fault}`));
  return { ok: true, link, der };
}

/** Else in words what is wrong with it. */
function readWelcome(
  message: ControlMessage,
  { ciphers, lanesMax }: Pick<DialOptions, "ciphers" | "lanesMax">,
): Welcome | string {
  if (message.kind !== "welcome") return "it did not say welcome";
  const { session, version } = message;
  const isFair = ciphers.includes(session.cipher) && session.lanes <= lanesMax;
  return isFair && version <= CONTROL_VERSION ? message : "it chose what was not offered";
}
