import { type Clock, messageOf } from "../../../core/index.ts";
import { NativeError } from "../../../native/index.ts";
import type { DialTarget, LinkFault, LinkFaultKind } from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { AskerLink, dialLine } from "../line/index.ts";
import { AskerRails } from "./asker-rails.ts";
import {
  CONTROL_VERSION,
  RDMA_CODEC,
  type RdmaControl,
  type RdmaMessage,
} from "./control/index.ts";
import type { RdmaLimits } from "./limits.ts";
import { RDMA_PROTOCOL } from "./protocol.ts";
import type { RailLinks } from "./rail-links.ts";

export interface RdmaDialOptions {
  readonly trust: Trust;
  readonly rails: RailLinks;
  readonly clock: Clock;
  readonly limits: RdmaLimits;
}

export type RdmaDialled =
  | { readonly ok: true; readonly link: AskerLink<RdmaMessage>; readonly der: Uint8Array }
  | { readonly ok: false; readonly fault: LinkFault };

type Welcome = Extract<RdmaMessage, { kind: "welcome" }>;

/** Certificates, hello, queue pairs: a link is given out when this side's are connected. */
export async function dialRdma(
  target: DialTarget,
  options: RdmaDialOptions,
  signal: AbortSignal,
): Promise<RdmaDialled> {
  const { trust, clock, limits, rails } = options;
  const offered = rails.offered();
  if (offered.length === 0) {
    const why = "no RDMA port of this host is active";
    return { ok: false, fault: { kind: "unreachable", why } };
  }
  const own = { trust, clock, limits, protocol: RDMA_PROTOCOL, codec: RDMA_CODEC };
  const dialled = await dialLine(target, own, signal);
  if (!dialled.ok) return dialled;
  const { dialling, identity, der } = dialled.value;
  const startMs = clock.monotonicMs();
  const { wanted } = rails;
  const hello = { kind: "hello", version: CONTROL_VERSION, wanted, rails: offered } as const;
  const welcome = await dialling.greet(hello, (said) => readWelcome(said, offered.length, wanted));
  if (!welcome.ok) return dialling.giveUp(welcome.fault);
  if (dialling.fault !== null) return dialling.giveUp(dialling.fault);
  const rttMs = clock.monotonicMs() - startMs;
  const { requests, pairs } = welcome.value;
  const { line } = dialling;
  try {
    const links = rails.connect(offered, pairs);
    line.send({ kind: "join", addresses: links.map(({ address }) => address) });
    let link: AskerLink<RdmaMessage> | null = null;
    const end = (kind: LinkFaultKind, why: string) => link?.end(kind, why);
    const payload = new AskerRails({ links, line, clock, limits, end });
    const parts = { identity, line, payload, clock, limits, requests, rttMs };
    link = new AskerLink({ transport: "rdma", ...parts });
    dialling.handTo(link);
    return { ok: true, link, der };
  } catch (thrown) {
    if (!(thrown instanceof NativeError)) throw thrown;
    return dialling.giveUp({ kind: "broken", why: `its queue pairs: ${messageOf(thrown)}` });
  }
}

/** Else in words what is wrong with it. */
function readWelcome(message: RdmaControl, offered: number, wanted: number): Welcome | string {
  if (message.kind !== "welcome") return "it did not say welcome";
  const { version, pairs } = message;
  const isFair = pairs.length <= wanted && pairs.every(({ rail }) => rail < offered);
  return isFair && version <= CONTROL_VERSION ? message : "it chose what was not offered";
}
