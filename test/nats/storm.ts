import type { NatsServer } from "../../scripts/lib/nats-process.ts";
import { type Random, randomBelow } from "../../src/core/index.ts";
import { waitFor } from "../support/wait.ts";

export interface StormOptions {
  readonly server: NatsServer;
  readonly kills: number;
  readonly random: Random;
  /** The name under which the agent is connected. */
  readonly connection: string;
  /** Commands that were answered so far. */
  answers(): number;
  onKill(kills: number): void;
}

export interface StormLog {
  kills: number;
  freezes: number;
  /** From a broker that takes connections to an agent that listens there. */
  readonly reconnectMs: number[];
}

/** By when commands are answered again, whatever happened. */
const PATIENCE_MS = 60_000;
/** Answers between two bursts, at least. */
const ANSWERS = 10;
const BURST_MAX = 3;
const DOWN_MS = 800;
const UP_IN_BURST_MS = 300;
const SHORT_LIFE_MS = 3_000;
/** Longer than a connection must last to count as a good one. */
const LONG_LIFE_MS = 10_500;
const FREEZE_MS = 3_000;
/** Longer than a connection may be silent: those at its ends give it up. */
const LONG_FREEZE_MS = 25_000;
const KILLS_A_LONG_FREEZE = 40;
const STARTS_MAX = 20;

/**
 * Kills a broker over and over, starts it again on the same ports, lets it stand still before. In
 * between commands get through.
 */
export async function storm(options: StormOptions): Promise<StormLog> {
  const { server, kills, random } = options;
  const log: StormLog = { kills: 0, freezes: 0, reconnectMs: [] };
  let longFreezes = 0;
  while (log.kills < kills) {
    const before = options.answers();
    const through = () => options.answers() >= before + ANSWERS;
    await waitFor(through, PATIENCE_MS, "answers between two kills");
    const isLong = kills > KILLS_A_LONG_FREEZE / 2 && randomBelow(random, 2) === 0;
    await Bun.sleep(isLong ? LONG_LIFE_MS : randomBelow(random, SHORT_LIFE_MS));
    if (Math.floor(log.kills / KILLS_A_LONG_FREEZE) > longFreezes) {
      longFreezes++;
      await freeze(server, log, LONG_FREEZE_MS);
      server.resume();
      continue;
    }
    // Some brokers are killed as they stand still, others after they came back.
    const how = randomBelow(random, 4);
    if (how <= 1) await freeze(server, log, 100 + randomBelow(random, FREEZE_MS));
    if (how === 0) {
      server.resume();
      await Bun.sleep(randomBelow(random, SHORT_LIFE_MS));
    }
    const burst = Math.min(1 + randomBelow(random, BURST_MAX), kills - log.kills);
    for (let nth = 1; nth <= burst; nth++) {
      await server.kill("SIGKILL");
      log.kills++;
      options.onKill(log.kills);
      await Bun.sleep(randomBelow(random, DOWN_MS));
      await startAgain(server);
      if (nth < burst) await Bun.sleep(randomBelow(random, UP_IN_BURST_MS));
    }
    const upMs = performance.now();
    await waitFor(() => isListening(server, options.connection), PATIENCE_MS, "the agent");
    log.reconnectMs.push(performance.now() - upMs);
  }
  return log;
}

async function freeze(server: NatsServer, log: StormLog, ms: number): Promise<void> {
  await server.pause();
  log.freezes++;
  await Bun.sleep(ms);
}

/** Somebody else may have the port for a moment. */
export async function startAgain(server: NatsServer): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await server.restart();
    } catch (thrown) {
      if (tries === STARTS_MAX) throw thrown;
      await Bun.sleep(100);
    }
  }
}

/** The broker has the connection and what it subscribed. */
export async function isListening(server: NatsServer, connection: string): Promise<boolean> {
  type Page = { connections: { name?: string; subscriptions: number }[] };
  const response = await fetch(`${server.monitorUrl}/connz`, { keepalive: false });
  const { connections } = (await response.json()) as Page;
  return connections.some(({ name, subscriptions }) => name === connection && subscriptions > 1);
}
