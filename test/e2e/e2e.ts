import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { NatsServer } from "../../scripts/lib/nats-process.ts";
import { messageOf } from "../../src/core/index.ts";
import type { Claim } from "./claims.ts";
import { RawNats } from "./raw-nats.ts";
import type { Scenario } from "./scenarios/index.ts";
import { type Exchange, Stage } from "./stage.ts";

export const CARRIERS = ["tcp", "ws"] as const;
/** How agents are connected to the broker. */
export type Carrier = (typeof CARRIERS)[number];

/** Result of one scenario over one carrier. */
export interface Row {
  readonly scenario: string;
  readonly kind: string;
  readonly carrier: Carrier;
  readonly claims: number;
  readonly failed: readonly Claim[];
  /** Why it could not go on; null where it came to its end. */
  readonly broken: string | null;
  readonly exchanges: readonly Exchange[];
  readonly ms: number;
}

export interface PlayParts {
  readonly executable: string;
  readonly server: NatsServer;
}

/** Plays one scenario with agents of its own, connected to the broker in this way. */
export async function play(
  scenario: Scenario,
  carrier: Carrier,
  { executable, server }: PlayParts,
): Promise<Row> {
  // Short: the path of a socket lies in it.
  const folder = mkdtempSync(join(tmpdir(), "hearth-"));
  const startMs = performance.now();
  using nats = await RawNats.connect(server.tcpPort);
  const natsUrl = carrier === "tcp" ? server.tcpUrl : server.wsUrl;
  const { monitorUrl } = server;
  const stage = new Stage({ executable, folder, nats, natsUrl, monitorUrl });
  let broken: string | null = null;
  try {
    await scenario.run(stage);
  } catch (thrown) {
    broken = messageOf(thrown);
  }
  await stage[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
  const { claims, exchanges } = stage;
  return {
    scenario: scenario.name,
    kind: scenario.kind,
    carrier,
    claims: claims.list.length,
    failed: claims.list.filter(({ holds }) => !holds),
    broken,
    exchanges,
    ms: Math.round(performance.now() - startMs),
  };
}

/** Messages of the claims that did not hold; empty if all did. */
export function faultsOf({ scenario, carrier, failed, broken }: Row): string[] {
  const where = `${scenario} (${carrier})`;
  const faults = failed.map(({ what, found, wanted }) => {
    return `${where}: ${what}: found ${Bun.inspect(found)}, wanted ${Bun.inspect(wanted)}`;
  });
  if (broken !== null) faults.push(`${where}: ${broken}`);
  return faults;
}
