import { type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import { CrashAgent, type End } from "./agent.ts";
import { isOneIn } from "./content.ts";
import { Life } from "./life.ts";
import { Oracle } from "./oracle.ts";
import { KillPlan } from "./points.ts";
import { PROFILES, type Profile } from "./profiles.ts";
import { Tally } from "./tally.ts";
import { World } from "./world.ts";

export interface CrashOptions {
  readonly executable: string;
  /** Of this run alone; on the file system to try. */
  readonly folder: string;
  readonly cycles: number;
  readonly seed: number;
  /** Kills at this point alone; null: at random moments and at all points in turn. */
  readonly point: string | null;
  onProgress(done: number, figures: CrashFigures): void;
}

export interface CrashFigures {
  readonly cycles: number;
  readonly wrong_bytes: number;
  readonly resurrected: number;
  /** Blocks whose persistence was acknowledged and that are gone. */
  readonly lost: number;
  readonly failed_restarts: number;
  readonly restarts: number;
  readonly restart_p50_ms: number;
  readonly restart_p99_ms: number;
  readonly points_reached: number;
  readonly points_known: number;
  readonly points_unreached: readonly string[];
  readonly verified_blocks: number;
  readonly commits: number;
  readonly purges: number;
  readonly persists: number;
  readonly fscks: number;
  readonly seconds: number;
}

export interface CrashReport {
  readonly figures: CrashFigures;
  readonly complaints: readonly string[];
}

const CYCLES_A_PROFILE = 8;
const CLEAN_EVERY = 20;
const LOAD_MS = 300;
const READY_MS = 10_000;
const STOP_MS = 15_000;

/** Kills an agent over and over, and judges what it answers after each start. */
export class CrashRun {
  readonly #options: CrashOptions;
  readonly #oracle = new Oracle();
  readonly #tally = new Tally(this.#oracle);
  readonly #world: World;
  readonly #plan: KillPlan;
  readonly #restartsMs: number[] = [];
  readonly #startMs = performance.now();
  #done = 0;

  constructor(options: CrashOptions) {
    this.#options = options;
    this.#world = new World(options.folder, `${options.folder}/ssd`, this.#oracle);
    this.#plan = new KillPlan(options.point, seededRandom(options.seed));
  }

  async run(): Promise<CrashReport> {
    const { cycles, seed, point, onProgress } = this.#options;
    this.#world.beginLife();
    for (let cycle = 0; cycle < cycles; cycle++) {
      const random = seededRandom(seed * 1_000_003 + cycle);
      const profile = PROFILES[Math.floor(cycle / CYCLES_A_PROFILE) % PROFILES.length]!;
      this.#tally.where = `cycle ${cycle} (${profile.name})`;
      this.#world.configure(profile);
      this.#oracle.nextRun(profile.keeps);
      if (cycle % CLEAN_EVERY === CLEAN_EVERY - 1) await this.#cleanCycle(profile, random);
      else if (point !== null || cycle % 2 === 1) await this.#namedCycle(profile, random);
      else await this.#randomCycle(profile, random);
      this.#done++;
      onProgress(this.#done, this.figures);
    }
    return { figures: this.figures, complaints: this.#tally.complaints };
  }

  get figures(): CrashFigures {
    const tally = this.#tally;
    return {
      cycles: this.#done,
      wrong_bytes: tally.wrongBytes,
      resurrected: tally.resurrected,
      lost: tally.lost,
      failed_restarts: tally.failedRestarts,
      restarts: this.#restartsMs.length,
      restart_p50_ms: quantile(this.#restartsMs, 0.5),
      restart_p99_ms: quantile(this.#restartsMs, 0.99),
      points_reached: this.#plan.reached,
      points_known: this.#plan.known,
      points_unreached: this.#plan.unreached,
      verified_blocks: tally.verified,
      commits: tally.commits,
      purges: tally.purges,
      persists: tally.persists,
      fscks: tally.fscks,
      seconds: Math.round((performance.now() - this.#startMs) / 100) / 10,
    };
  }

  #start(plan: string): CrashAgent {
    const { executable, folder } = this.#options;
    const { configPath } = this.#world;
    return new CrashAgent({ executable, configPath, folder, plan });
  }

  #life(agent: CrashAgent, profile: Profile, random: Random): Life {
    const [oracle, tally, { keeps }, { socket }] = [
      this.#oracle,
      this.#tally,
      profile,
      this.#world,
    ];
    return new Life({ agent, socket, keeps, oracle, tally, random });
  }

  /** Whether it serves; `mayDie` where a planned fault may end it before that. */
  async #ready(agent: CrashAgent, mayDie: boolean): Promise<boolean> {
    const late = Bun.sleep(READY_MS).then(() => "late" as const);
    const ms = await Promise.race([agent.ready, late]);
    if (typeof ms === "number") {
      this.#restartsMs.push(ms);
      return true;
    }
    if (ms === null) {
      const end = await agent.ended;
      if (end.signal === "SIGKILL" && (mayDie || agent.killedByUs)) return false;
    }
    this.#failed(agent, ms === null ? "it ended" : "it is not ready after ten seconds");
    agent.kill();
    await agent.ended;
    return false;
  }

  #failed(agent: CrashAgent, why: string): void {
    this.#tally.failedRestarts++;
    this.#tally.complain(`no restart: ${why}\n${agent.lastLines.join("\n")}`);
  }

  /** Killed from outside: while it starts, under load, or while it drains. */
  async #randomCycle(profile: Profile, random: Random): Promise<void> {
    this.#befall(random);
    const agent = this.#start("");
    const when = randomBelow(random, 6);
    if (when === 0) setTimeout(() => agent.kill(), randomBelow(random, LOAD_MS));
    if (await this.#ready(agent, false)) {
      await using life = this.#life(agent, profile, random);
      await life.connect();
      await life.verify();
      const stop = new AbortController();
      const load = life.load(stop.signal);
      await Bun.sleep(randomBelow(random, LOAD_MS));
      if (when === 1) {
        life.expectEnd();
        agent.stop();
        stop.abort();
        await Bun.sleep(randomBelow(random, 60));
      }
      agent.kill();
      await load;
    }
    await this.#expectKilled(agent);
    this.#world.clearDamage();
  }

  /** Killed at a point in the program; an agent that never comes there is stopped. */
  async #namedCycle(profile: Profile, random: Random): Promise<void> {
    const { kill, plan, ended } = this.#plan.next(random);
    this.#tally.where += ` ${plan}`;
    this.#prepare(kill.name, random);
    const agent = this.#start(plan);
    if (await this.#ready(agent, true)) {
      await using life = this.#life(agent, profile, random);
      await life.connect();
      await life.verify();
      const stop = new AbortController();
      const load = life.load(stop.signal);
      await Promise.race([agent.ended, Bun.sleep(LOAD_MS)]);
      life.expectEnd();
      agent.stop();
      stop.abort();
      await load;
    }
    const end = await this.#stopped(agent);
    ended(end.signal === "SIGKILL" && !agent.killedByUs);
    this.#world.clearDamage();
  }

  /** Stopped as it should be; then everything on SSD is sound. */
  async #cleanCycle(profile: Profile, random: Random): Promise<void> {
    const agent = this.#start("");
    if (await this.#ready(agent, false)) {
      await using life = this.#life(agent, profile, random);
      await life.connect();
      if (!(await life.verify())) this.#tally.complain("not all could be read");
      const stop = new AbortController();
      const load = life.load(stop.signal);
      await Bun.sleep(LOAD_MS / 2);
      stop.abort();
      await load;
    }
    agent.stop();
    const { code } = await this.#stopped(agent);
    if (code !== 0) this.#tally.complain(`a clean stop ended with ${code}`);
    await this.#fsck();
  }

  /** What a point needs so that the agent comes to it. */
  #prepare(name: string, random: Random): void {
    const isFirst = name.startsWith("owner.") || /^index\..*migrated$/.test(name);
    if (isFirst) this.#world.beginLife();
    else if (/^index\..*set-aside$/.test(name)) this.#world.damageIndex();
    else if (name.startsWith("rename.") || name === "room.quarantined") {
      this.#world.damageFiles(20, random);
    }
  }

  /** What may befall folders while nobody looks. */
  #befall(random: Random): void {
    if (isOneIn(random, 60)) this.#world.beginLife();
    if (isOneIn(random, 30)) this.#world.damageIndex();
    if (isOneIn(random, 10)) this.#world.damageFiles(2, random);
  }

  async #stopped(agent: CrashAgent): Promise<End> {
    const late = Bun.sleep(STOP_MS).then(() => null);
    const end = await Promise.race([agent.ended, late]);
    if (end !== null) {
      const isOrderly = end.code === 0 || end.signal === "SIGKILL";
      if (!isOrderly) {
        const words = agent.lastLines.join("\n");
        this.#tally.complain(`it ended by ${end.signal ?? end.code}\n${words}`);
      }
      return end;
    }
    this.#tally.complain(`it does not stop\n${agent.lastLines.join("\n")}`);
    agent.kill();
    return agent.ended;
  }

  async #expectKilled(agent: CrashAgent): Promise<void> {
    const { code, signal } = await agent.ended;
    if (signal === "SIGKILL" || code === 0) return;
    this.#tally.complain(`it ended by itself: ${signal ?? code}\n${agent.lastLines.join("\n")}`);
  }

  async #fsck(): Promise<void> {
    const words = [this.#options.executable, "fsck", this.#world.ssdDir, "--deep", "--json"];
    const child = Bun.spawn(words, { stdout: "pipe", stderr: "pipe" });
    const [out, err] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
      child.exited,
    ]);
    this.#tally.fscks++;
    const problems = child.exitCode === 0 ? JSON.parse(out).problems : 1;
    if (problems !== 0) this.#tally.complain(`fsck: ${out}${err}`);
  }
}

/** Whole milliseconds; 0 of nothing. */
function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const at = Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1);
  return Math.round(sorted[Math.max(0, at)] ?? 0);
}
