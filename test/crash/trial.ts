import type { Random } from "../../src/core/index.ts";
import { CrashAgent, type End } from "./agent.ts";
import type { CommandFigures } from "./commands/command-tally.ts";
import { Commander } from "./commands/commander.ts";
import { WallClock } from "./commands/wall-clock.ts";
import { Life } from "./life.ts";
import { Oracle } from "./oracle.ts";
import { KillPlan } from "./points.ts";
import { COMMAND_PROFILES, PROFILES, type Profile } from "./profiles.ts";
import { promisesOf } from "./promises.ts";
import { Tally } from "./tally.ts";
import { World } from "./world.ts";

export interface TrialOptions {
  readonly executable: string;
  /** For socket and configuration. */
  readonly folder: string;
  /** Of the blocks: on the file system to try. */
  readonly ssdDir: string;
  readonly random: Random;
  /** The only point at which agents are killed by a plan; null: all of them. */
  readonly point: string | null;
  /** Whether pins, leases and other commands are sent, and the wall clock jumps. */
  readonly commands?: boolean;
}

export interface TrialFigures {
  readonly wrong_bytes: number;
  /** Blocks that were there again although a purge had been acknowledged. */
  readonly resurrected: number;
  /** Blocks whose persistence was acknowledged and that are gone. */
  readonly lost: number;
  readonly failed_restarts: number;
  readonly restarts: number;
  readonly restart_p50_ms: number;
  readonly restart_p99_ms: number;
  /** The slowest, with what made them slow where that was planned. */
  readonly restart_slowest: readonly string[];
  readonly points_reached: number;
  readonly points_known: number;
  readonly points_unreached: readonly string[];
  readonly verified_blocks: number;
  readonly commits: number;
  readonly purges: number;
  readonly persists: number;
  readonly fscks: number;
  readonly seconds: number;
  /** Null where none were sent. */
  readonly commands: CommandFigures | null;
}

const CYCLES_A_PROFILE = 8;
const LOAD_MS = 300;
/** Long enough that some holds end meanwhile. */
const COMMANDS_LOAD_MS = 900;
const READY_MS = 10_000;
const STOP_MS = 15_000;
const SLOWEST_SHOWN = 5;

/** Runs of agents on one pair of folders, one after the other, and what is known of them. */
export class Trial {
  readonly oracle = new Oracle();
  readonly tally = new Tally(this.oracle);
  readonly plan: KillPlan;
  readonly world: World;
  readonly #options: TrialOptions;
  readonly #restarts: { readonly ms: number; readonly where: string }[] = [];
  readonly #startMs = performance.now();
  readonly #commander: Commander | null = null;
  readonly #wall: WallClock | null = null;
  readonly #profiles: readonly Profile[] = PROFILES;
  #profile: Profile;

  constructor(options: TrialOptions) {
    this.#options = options;
    if (options.commands) {
      this.#commander = new Commander(this.oracle, (text) => this.tally.complain(text));
      this.#wall = new WallClock(options.folder);
      this.#profiles = COMMAND_PROFILES;
    }
    this.#profile = this.#profiles[0]!;
    const favours = options.commands ? isOfCommands : () => false;
    this.plan = new KillPlan(options.point, options.random, favours);
    const promises = promisesOf(this.oracle, this.#commander);
    this.tally.promises = promises;
    this.world = new World(options.folder, options.ssdDir, promises);
  }

  /** What the next run is set up with, several cycles long the same. */
  beginCycle(cycle: number): Profile {
    const profile = this.#profiles[Math.floor(cycle / CYCLES_A_PROFILE) % this.#profiles.length]!;
    this.#profile = profile;
    this.tally.where = `cycle ${cycle} (${profile.name})`;
    this.world.configure(profile);
    this.oracle.nextRun(profile.keeps);
    if (this.#commander !== null) {
      this.#commander.room.softMayGo = typeof profile.commands?.flood === "number";
    }
    return profile;
  }

  /** How long engines and operators are at work in one run. */
  get loadMs(): number {
    return this.#commander === null ? LOAD_MS : COMMANDS_LOAD_MS;
  }

  start(plan: string): CrashAgent {
    const { executable, folder } = this.#options;
    this.#wall?.jump(this.#options.random);
    const wallOffset = this.#wall?.path;
    const { configPath } = this.world;
    return new CrashAgent({ executable, configPath, folder, plan, wallOffset });
  }

  life(agent: CrashAgent, random: Random): Life {
    const { oracle, tally } = this;
    const { socket } = this.world;
    const commands = this.#commander?.open(agent.url, agent.readyMs, random) ?? null;
    const own = { commands, wall: this.#wall, profile: this.#profile };
    return new Life({ agent, socket, oracle, tally, random, ...own });
  }

  /** Whether it serves; `mayDie` where a planned fault may end it before that. */
  async ready(agent: CrashAgent, mayDie: boolean): Promise<boolean> {
    const late = Bun.sleep(READY_MS).then(() => "late" as const);
    const ms = await Promise.race([agent.ready, late]);
    if (typeof ms === "number") {
      this.#restarts.push({ ms, where: this.tally.where });
      return true;
    }
    if (ms === null) {
      const end = await agent.ended;
      if (end.signal === "SIGKILL" && (mayDie || agent.killedByUs)) return false;
    }
    const why = ms === null ? "it ended" : "it is not ready after ten seconds";
    this.tally.failedRestarts++;
    this.tally.complain(`no restart: ${why}\n${agent.lastLines.join("\n")}`);
    agent.kill();
    await agent.ended;
    return false;
  }

  /** How an agent ended that was asked to, or killed itself. */
  async stopped(agent: CrashAgent): Promise<End> {
    const late = Bun.sleep(STOP_MS).then(() => null);
    const end = await Promise.race([agent.ended, late]);
    if (end === null) {
      this.tally.complain(`it does not stop\n${agent.lastLines.join("\n")}`);
      agent.kill();
      return agent.ended;
    }
    const isOrderly = end.code === 0 || end.signal === "SIGKILL";
    if (!isOrderly) {
      const words = agent.lastLines.join("\n");
      this.tally.complain(`it ended by ${end.signal ?? end.code}\n${words}`);
    }
    return end;
  }

  /** Looks at every file; all is sound after a clean stop. */
  async fsck(): Promise<void> {
    const words = [this.#options.executable, "fsck", this.world.ssdDir, "--deep", "--json"];
    words.push("--index", this.world.indexDir);
    const child = Bun.spawn(words, { stdout: "pipe", stderr: "pipe" });
    const [out, err] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
      child.exited,
    ]);
    this.tally.fscks++;
    const problems = child.exitCode === 0 ? JSON.parse(out).problems : 1;
    if (problems !== 0) this.tally.complain(`fsck: ${out}${err}`);
  }

  #commandFigures(): CommandFigures | null {
    if (this.#commander === null) return null;
    return { ...this.#commander.tally.figures, wall_jumps: this.#wall?.jumps ?? 0 };
  }

  get figures(): TrialFigures {
    const { tally, plan } = this;
    const restarts = [...this.#restarts].sort((a, b) => a.ms - b.ms);
    const slowest = restarts.slice(-SLOWEST_SHOWN).reverse();
    return {
      wrong_bytes: tally.wrongBytes,
      resurrected: tally.resurrected,
      lost: tally.lost,
      failed_restarts: tally.failedRestarts,
      restarts: restarts.length,
      restart_p50_ms: quantile(restarts, 0.5),
      restart_p99_ms: quantile(restarts, 0.99),
      restart_slowest: slowest.map(({ ms, where }) => `${Math.round(ms)} ms, ${where}`),
      points_reached: plan.reached,
      points_known: plan.known,
      points_unreached: plan.unreached,
      verified_blocks: tally.verified,
      commits: tally.commits,
      purges: tally.purges,
      persists: tally.persists,
      fscks: tally.fscks,
      commands: this.#commandFigures(),
      seconds: Math.round((performance.now() - this.#startMs) / 100) / 10,
    };
  }
}

/** Points that commands come to, and what makes them last. */
function isOfCommands(point: string): boolean {
  return /^(?:ledger|hold|pin|pause|lease|removal|purge|durable|control)\./.test(point);
}

/** Whole milliseconds; 0 of nothing. */
function quantile(sorted: readonly { readonly ms: number }[], share: number): number {
  const at = Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1);
  return Math.round(sorted[Math.max(0, at)]?.ms ?? 0);
}
