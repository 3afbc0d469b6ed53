import { expect, test } from "bun:test";
import { LAYER_ALL, type Random, seededRandom } from "../../../src/core/index.ts";
import { purgeBlocks } from "../../../src/store/index.ts";
import { describeNative, withTempDir } from "../../support/index.ts";
import { type BlockName, chain, digestOf } from "../names.ts";
import { SsdHost, SsdKit } from "../ssd/ssd-kit.ts";
import type { StoreEngine } from "../store-engine.ts";
import { Neighbour } from "./neighbour.ts";

const STEPS = 1_500;
const AT_ONCE = 12;
/** Counters that the random traffic must increase. */
const COUNTED = ["acquireHitsPeer", "acquireHitsSsd", "lentBlocks", "peerCorruptBlocks"] as const;
const NAMES: readonly BlockName[] = [
  ..."a/b/c/d a/b/c/e a/b/f a/g h/i/j h/i/k l/m/n/o p q r/s t/u v/w/x".split(" "),
];

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** One host with its engines, and its view of the other one. */
class Host {
  readonly kit: SsdKit;
  readonly neighbour: Neighbour;
  engine: StoreEngine;
  wrong = 0;
  hits = 0;

  constructor(kit: SsdKit, other: SsdKit) {
    this.kit = kit;
    this.neighbour = new Neighbour(kit.store, other.store);
    this.neighbour.before = turn;
    kit.store.setPeers(this.neighbour);
    this.engine = kit.engine();
  }

  async read(names: readonly BlockName[], stopAtMiss: boolean, turns: number): Promise<void> {
    const { engine } = this;
    const handles = await engine.fetch(names, { stopAtMiss, deadlineMs: 60_000 });
    const got = handles.filter(({ outcome }) => outcome === "ok");
    for (let i = 0; i < turns; i++) await turn();
    // The engine may have been replaced, and its references released.
    if (engine !== this.engine) return;
    this.hits += got.length;
    this.wrong += got.filter((handle) => !engine.proves(handle)).length;
    engine.release(got);
  }

  /** Writes complete blocks of either host, or none. */
  async write(names: readonly BlockName[], breaks: boolean): Promise<void> {
    const { engine } = this;
    const handles = engine.reserve(...names).filter(({ outcome }) => outcome === "ok");
    await turn();
    if (engine !== this.engine) return;
    if (breaks) {
      engine.abort(handles);
      return;
    }
    engine.write(handles);
    await engine.commit(handles);
  }

  purge(names: readonly BlockName[]): Promise<unknown> {
    const addresses = names.map((name) => ({ digest: digestOf(name), layer: LAYER_ALL }));
    return purgeBlocks(this.kit.store, addresses);
  }

  kill(): void {
    const { engine } = this;
    this.engine = this.kit.engine();
    engine.die();
  }
}

function step(host: Host, random: Random): Promise<unknown> {
  const names = chain(NAMES[random.u32() % NAMES.length]!);
  const dice = random.u32() % 100;
  const { neighbour } = host;
  const lies = random.u32() % 3 === 0;
  neighbour.lie = lies ? ({ checksum }) => ({ checksum: checksum ^ 4n }) : () => ({});
  neighbour.keep = random.u32() % 4 !== 0;
  if (dice < 55) return host.read(names, dice % 2 === 0, dice % 5);
  if (dice < 80) return host.write(names, dice === 79);
  if (dice < 92) return host.purge(names.slice(-1));
  if (dice < 94) host.kill();
  else if (dice < 95) host.kit.store.incoming.allRemoved();
  else host.kit.leaveRam();
  return Promise.resolve();
}

describeNative("two hosts that fetch from each other", () => {
  const came = new Map<(typeof COUNTED)[number], number>();
  for (const seed of [1, 2, 3]) {
    test(`deliver no wrong byte and leave no lock in random traffic (${seed})`, async () => {
      await withTempDir(async (dir) => {
        await using stack = new AsyncDisposableStack();
        const open = async (name: string) => {
          const machine = stack.use(new SsdHost());
          const options = { slots: 9, blocksMax: 40, dir: `${dir}/${name}` } as const;
          return stack.use(await SsdKit.open(machine, options));
        };
        const [a, b] = [await open("a"), await open("b")];
        const hosts = [new Host(a, b), new Host(b, a)];
        const random = seededRandom(seed);
        const running = new Set<Promise<unknown>>();
        for (let i = 0; i < STEPS; i++) {
          const work = step(hosts[i % 2]!, random).finally(() => running.delete(work));
          running.add(work);
          if (running.size >= AT_ONCE) await Promise.race(running);
        }
        await Promise.all(running);
        for (const { kit } of hosts) {
          await kit.expectNothingLeft();
          expect(kit.store.incoming.areNone).toBe(true);
        }
        expect(hosts.map(({ wrong }) => wrong)).toEqual([0, 0]);
        expect(Math.min(...hosts.map(({ hits }) => hits))).toBeGreaterThan(100);
        for (const what of COUNTED) {
          const times = hosts.reduce((sum, { kit }) => sum + kit.store.stats[what], 0);
          came.set(what, (came.get(what) ?? 0) + times);
        }
      });
    });
  }

  test("have covered every kind of event in some run", () => {
    expect(COUNTED.filter((what) => (came.get(what) ?? 0) === 0)).toEqual([]);
  });
});
