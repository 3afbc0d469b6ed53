import { SoakAgent, type SoakStatus } from "./agent.ts";
import { CrewMember, type Told } from "./crew.ts";
import { createMemoryLog } from "./memory-log.ts";

export interface SoakOptions {
  readonly python: string;
  readonly binary: string | null;
  readonly cycles: number;
  readonly seed: string;
  onProgress(done: number, residentMb: number): void;
}

/** What is printed. */
export interface SoakFigures {
  readonly cycles: number;
  readonly killed: number;
  readonly stopped: number;
  readonly exited: number;
  readonly wrong_bytes: number;
  /** Slots, or locks on blocks, that nobody alive holds. */
  readonly leaked_slots: number;
  /** Slots that still wait for a death after all clients are dead. */
  readonly quarantined: number;
  readonly verified_blocks: number;
  readonly agent_rss_start_mb: number;
  readonly agent_rss_end_mb: number;
  readonly drift_percent: number;
  readonly seconds: number;
}

export interface SoakReport {
  readonly figures: SoakFigures;
  /** What else went wrong, in words. */
  readonly complaints: readonly string[];
}

/** Room for a fifth of the blocks that clients name: slots are taken and given up all along. */
const RAM_BYTES = 7 * 2 ** 20;
const LEASE_MS = 1_000;
const CRADLES = 3;
const CLIENTS_A_CRADLE = 4;
/** By when the agent has noticed all deaths; it promises a second. */
const SETTLE_MS = 5_000;
const SAMPLE_MS = 50;
/** Runs shorter than this are all warm-up: their memory is told and not judged. */
const JUDGED_CYCLES_MIN = 5_000;
/** Clients before the first that counts: so many until the runtime has compiled what it will. */
const WARM_UP_CYCLES = 8_000;
const DRIFT_PERCENT_MAX = 2;
/**
 * Memory that seems to grow gets more time: what comes and goes is told from what stays by a line
 * three times as long.
 */
const LAPS_MAX = 3;
const COMPLAINTS_MAX = 20;

export async function runSoak(options: SoakOptions): Promise<SoakReport> {
  const { python, cycles, seed } = options;
  const started = performance.now();
  const tally = createTally();
  await using agent = await SoakAgent.start({
    binary: options.binary,
    ramBytes: RAM_BYTES,
    leaseMs: LEASE_MS,
  });
  const memory = createMemoryLog(cycles);
  const socket = agent.socketPath;
  const crew: Crew = { python, socket, onTold: (told) => tally.note(told) };
  {
    await using reader = sayTo(crew, "reader.py", [socket, seed]);
    const isJudged = cycles >= JUDGED_CYCLES_MIN;
    await liveAndDie(crew, isJudged ? WARM_UP_CYCLES : 0, `${seed}/warm`, () => undefined);
    tally.startOver();
    for (let lap = 0; lap < LAPS_MAX; lap++) {
      await liveAndDie(crew, cycles, `${seed}/${lap}`, (done) => {
        const bytes = agent.residentBytes();
        memory.note(lap * cycles + done, bytes);
        options.onProgress(lap * cycles + done, bytes / 2 ** 20);
      });
      if (!isJudged || memory.judge().driftPercent < DRIFT_PERCENT_MAX) break;
    }
    await reader.dismissed();
  }
  const seconds = (performance.now() - started) / 1_000;
  const atRest = await settled(agent);
  await using flood = sayTo(crew, "flood.py", [socket, String(RAM_BYTES)]);
  await flood.finished();
  const flooded = await settled(agent);
  const { start, end, driftPercent } = memory.judge();
  const leaks = [leaksOf(atRest), leaksOf(flooded) + tally.stayed, leakedNodes(flooded)];
  return {
    figures: {
      cycles: tally.killed + tally.stopped + tally.exited,
      killed: tally.killed,
      stopped: tally.stopped,
      exited: tally.exited,
      wrong_bytes: tally.wrongBytes,
      leaked_slots: Math.max(...leaks),
      quarantined: atRest.engine.slots_quarantined + flooded.engine.slots_quarantined,
      verified_blocks: tally.verified,
      agent_rss_start_mb: rounded(start / 2 ** 20),
      agent_rss_end_mb: rounded(end / 2 ** 20),
      drift_percent: rounded(driftPercent),
      seconds: rounded(seconds),
    },
    complaints: [...tally.complaints, ...agent.errors.map((line) => `the agent says: ${line}`)],
  };
}

/** What must not be, in words; nothing where all is well. */
export function violationsOf({ figures, complaints }: SoakReport): string[] {
  const found = [...complaints];
  if (figures.wrong_bytes > 0) found.push(`${figures.wrong_bytes} wrong bytes`);
  if (figures.leaked_slots > 0) found.push(`${figures.leaked_slots} leaked slots`);
  if (figures.quarantined > 0) found.push(`${figures.quarantined} slots stay quarantined`);
  if (figures.verified_blocks === 0) found.push("no block was verified: the run proves nothing");
  const isJudged = figures.cycles >= JUDGED_CYCLES_MIN;
  if (isJudged && figures.drift_percent >= DRIFT_PERCENT_MAX) {
    found.push(`the agent's memory grew by ${figures.drift_percent} %`);
  }
  return found;
}

interface Crew {
  readonly python: string;
  readonly socket: string;
  onTold(told: Told): void;
}

function sayTo({ python, onTold }: Crew, script: string, args: string[]): CrewMember {
  return new CrewMember(python, script, args, onTold);
}

/** So many clients live and die. `onSample` is called often with how many have. */
async function liveAndDie(
  crew: Crew,
  cycles: number,
  seed: string,
  onSample: (done: number) => void,
): Promise<void> {
  const done = new Array<number>(CRADLES).fill(0);
  const cradles = done.map((_, i) => {
    const share = Math.floor(cycles / CRADLES) + (i < cycles % CRADLES ? 1 : 0);
    const args = [crew.socket, `${seed}/${i}`, share, LEASE_MS, CLIENTS_A_CRADLE].map(String);
    return new CrewMember(crew.python, "cradle.py", args, (told) => {
      done[i] = told.done ?? done[i]!;
      crew.onTold(told);
    });
  });
  const sampler = setInterval(() => onSample(done.reduce((sum, one) => sum + one, 0)), SAMPLE_MS);
  try {
    await Promise.all(cradles.map((cradle) => cradle.finished()));
  } finally {
    clearInterval(sampler);
    for (const cradle of cradles) await cradle[Symbol.asyncDispose]();
  }
}

function createTally() {
  const nobody = { killed: 0, stopped: 0, exited: 0 };
  const tally = {
    ...nobody,
    wrongBytes: 0,
    verified: 0,
    stayed: 0,
    complaints: [] as string[],
    /** What went wrong stays; who lived until now is not counted. */
    startOver: () => void Object.assign(tally, nobody),
    note(told: Told) {
      tally.killed += told.totals?.killed ?? 0;
      tally.stopped += told.totals?.stopped ?? 0;
      tally.exited += told.totals?.exited ?? 0;
      tally.wrongBytes += told.wrong_bytes ?? 0;
      tally.verified += told.verified ?? 0;
      tally.stayed += told.stayed ?? 0;
      const full = told.stored === told.wanted;
      const text = told.violation ?? (full ? null : `only ${told.stored} of ${told.wanted} stored`);
      if (text !== null && tally.complaints.length < COMPLAINTS_MAX) tally.complaints.push(text);
    },
  };
  return tally;
}

/** The agent's status once it has noticed that its clients are gone, or the last one it gave. */
async function settled(agent: SoakAgent): Promise<SoakStatus> {
  const deadline = performance.now() + SETTLE_MS;
  for (;;) {
    const status = await agent.status();
    const { connections, slots_held, slots_quarantined } = status.engine;
    if (connections + slots_held + slots_quarantined === 0) return status;
    if (performance.now() > deadline) return status;
    await Bun.sleep(20);
  }
}

/** Slots in use without a block, and those somebody is said to hold. */
function leaksOf({ ram, engine }: SoakStatus): number {
  const used = ram.slots.reduce((sum, slots) => sum + slots.used, 0);
  return used - ram.blocks + engine.slots_held;
}

/** With nothing but the flood's blocks in RAM, each node is one of them. */
function leakedNodes({ ram, table }: SoakStatus): number {
  return table.blocks - ram.blocks + table.gpu_blocks;
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100;
}
