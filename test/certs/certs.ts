import { systemClock, type WorkerId } from "../../src/core/index.ts";
import type { TransportMaker } from "../peers/transports/contract-kit.ts";
import { makeCluster, validFor } from "../support/index.ts";
import { BAD_CREDENTIALS } from "./bad-credentials.ts";
import { authority, credentialsWith, forge, forged } from "./forge.ts";
import { RAW_CASES, type RawCase } from "./raw.ts";
import { type Attempt, BAD, DIRECTIONS, type Direction, Rig } from "./rig.ts";

/** Result of one invalid credential in one direction over one transport. */
export interface CaseResult extends Attempt {
  readonly name: string;
  readonly transport: string;
  readonly direction: Direction;
}

export interface CertsReport {
  readonly results: readonly CaseResult[];
  /** Valid credentials tried and accepted; all must be accepted. */
  readonly good: { readonly tried: number; readonly accepted: number };
  /** Secrets found in logs and faults. */
  readonly leaks: number;
  readonly seconds: number;
}

/**
 * Invalid credentials that were accepted, or refused without a reason; valid ones that were
 * refused.
 */
export function violationsOf({ results, good, leaks }: CertsReport): string[] {
  const where = ({ name, transport, direction }: CaseResult) =>
    `${name}, ${direction === "caller" ? "calling" : "called"} over ${transport}`;
  const bad = results.filter(({ accepted }) => accepted).map((one) => `accepted: ${where(one)}`);
  const mute = results
    .filter(({ accepted, reason }) => !accepted && reason === "")
    .map((one) => `no reason: ${where(one)}`);
  const locked = good.tried - good.accepted;
  return [
    ...bad,
    ...mute,
    ...(locked > 0 ? [`${locked} good ones were not let in`] : []),
    ...(leaks > 0 ? [`secrets in logs: ${leaks}`] : []),
  ];
}

export interface CertsOptions {
  readonly makers: readonly TransportMaker[];
  /** Tries one in this many of the credentials. */
  readonly oneIn: number;
  /** Maximum wait for a logged reason; default 5 s. */
  readonly patienceMs?: number;
  onResult?(result: CaseResult): void;
}

const PATIENCE_MS = 5_000;

type Say = (name: string, direction: Direction, attempt: Attempt) => void;

/**
 * Presents invalid credentials to a good host, as client and as server, and counts which are
 * accepted.
 */
export async function runCerts(options: CertsOptions): Promise<CertsReport> {
  const { makers, oneIn, onResult, patienceMs = PATIENCE_MS } = options;
  const startMs = systemClock.monotonicMs();
  const results: CaseResult[] = [];
  const good = { tried: 0, accepted: 0 };
  let leaks = 0;
  for (const maker of makers) {
    const say: Say = (name, direction, attempt) => {
      const result = { name, transport: maker.name, direction, ...attempt };
      results.push(result);
      onResult?.(result);
    };
    await using rig = await Rig.make(maker, patienceMs);
    await tryGood(rig, good);
    for (const bad of BAD_CREDENTIALS.filter((_, index) => index % oneIn === 0)) {
      const directions = bad.shownBy === "host" ? (["host"] as const) : DIRECTIONS;
      for (const direction of directions) {
        say(bad.name, direction, await rig.try(direction, bad.make(rig.cluster, BAD)));
      }
    }
    for (const raw of RAW_CASES.filter(({ transport }) => transport === maker.name)) {
      say(raw.name, raw.direction, await tryRaw(rig, raw));
    }
    await tryGood(rig, good);
    await tryBetween(() => Rig.make(maker, patienceMs), good);
    await tryLater(() => Rig.make(maker, patienceMs), say, good);
    leaks += rig.leaks().length;
  }
  const seconds = (systemClock.monotonicMs() - startMs) / 1_000;
  return { results, good, leaks, seconds: Number(seconds.toFixed(1)) };
}

/** Without this, a host that refuses everything would pass. */
async function tryGood(rig: Rig, good: { tried: number; accepted: number }): Promise<void> {
  for (const direction of DIRECTIONS) {
    const { accepted } = await rig.try(direction, rig.cluster.host(BAD));
    good.tried++;
    if (accepted) good.accepted++;
  }
}

/** Hosts with an intermediate authority that is either presented or in the verifier's list. */
async function tryBetween(
  make: () => Promise<Rig>,
  good: { tried: number; accepted: number },
): Promise<void> {
  for (const isShown of [true, false]) {
    await using rig = await make();
    const { cluster } = rig;
    const root = authority(cluster, "root", 1, "self");
    const between = authority(cluster, "between", 0, root);
    const chain = isShown ? between.certificate : "";
    const listed = root.certificate + (isShown ? "" : between.certificate);
    const host = (worker: string) => {
      const pair = forge(cluster, worker, { signer: between });
      return { ...credentialsWith(cluster, worker, pair, chain), authorities: listed };
    };
    rig.trust.change(host(rig.trust.credentials.worker));
    rig.keep(rig.trust.credentials.key);
    await rig.good.transport.reload();
    for (const direction of DIRECTIONS) {
      const { accepted } = await rig.try(direction, host(BAD));
      good.tried++;
      if (accepted) good.accepted++;
    }
  }
}

async function tryRaw(rig: Rig, raw: RawCase): Promise<Attempt> {
  const mark = rig.mark();
  const end = await raw.run(rig);
  if (end.kind === "called") return rig.attempt(mark, end.gotAnswer);
  const target = { ...end.endpoint, worker: BAD as WorkerId };
  const dialled = await rig.good.transport.dial(target, new AbortController().signal);
  if (dialled.ok) await dialled.connection[Symbol.asyncDispose]();
  end.close();
  return { accepted: dialled.ok, reason: dialled.ok ? "" : dialled.fault.why };
}

/** Peers that were accepted before and must not be any more, whatever session tickets they have. */
async function tryLater(
  make: () => Promise<Rig>,
  say: Say,
  good: { tried: number; accepted: number },
): Promise<void> {
  const changes: readonly (readonly [string, (rig: Rig) => Promise<void>])[] = [
    ["authority taken out since", revoke],
    ["expired since", expire],
  ];
  for (const [name, change] of changes) {
    await using rig = await make();
    const before = forged(rig.cluster, BAD, { validity: validFor(1) });
    await using stranger = rig.stranger(before);
    await stranger.listen();
    for (const attempt of [await rig.callBy(stranger), await rig.callTo(stranger)]) {
      good.tried++;
      if (attempt.accepted) good.accepted++;
    }
    await change(rig);
    say(name, "caller", await rig.callBy(stranger));
    say(name, "host", await rig.callTo(stranger));
  }
}

async function revoke(rig: Rig): Promise<void> {
  const next = makeCluster(null, rig.cluster.name).host(rig.trust.credentials.worker);
  const { authority } = rig.cluster;
  rig.keep(next.key);
  // Presents the same certificate as before, so that the peer still accepts it.
  const { certificates, key } = rig.cluster.host(rig.trust.credentials.worker);
  rig.keep(key);
  rig.trust.change({ ...next, certificates: certificates + authority.certificate, key });
  await rig.good.transport.reload();
}

async function expire(rig: Rig): Promise<void> {
  rig.aheadMs = 2 * 86_400_000;
}
