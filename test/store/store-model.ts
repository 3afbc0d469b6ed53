import { type BlockName, type OutcomeName, parentOf } from "./names.ts";

interface Node {
  readonly namespace: number;
  /** Whether the parent is known: false until the parent was inserted. */
  linked: boolean;
  resident: boolean;
  writing: boolean;
  locks: number;
}

interface Hold {
  readonly writing: boolean;
  reads: number;
}

/** A slot that waits for a block of a peer. */
export interface ModelLanding {
  readonly name: BlockName;
  removed: boolean;
}

/** One engine in the model; references in the order in which they began. */
export interface ModelEngine {
  readonly namespace: number;
  readonly holds: Map<BlockName, Hold>;
  /** Unfinished slots whose process has not exited. */
  quarantined: number;
}

/**
 * The RAM store with one block size, as simple and literal as possible. Commits are synchronous,
 * the table is never full, and no eviction runs in the background.
 */
export class StoreModel {
  readonly nodes = new Map<BlockName, Node>();
  readonly sessions = new Map<string, BlockName>();
  /** Evictable blocks in RAM, the next victim first. */
  order: BlockName[] = [];
  free: number;
  readonly incoming = new Set<ModelLanding>();
  readonly #slots: number;

  constructor(slots: number) {
    this.free = slots;
    this.#slots = slots;
  }

  openEngine(namespace: number): ModelEngine {
    return { namespace, holds: new Map(), quarantined: 0 };
  }

  isResident(name: BlockName, namespace: number): boolean {
    const node = this.nodes.get(name);
    return node?.namespace === namespace && node.resident;
  }

  residentBlocks(): BlockName[] {
    return [...this.nodes].filter(([, node]) => node.resident).map(([name]) => name);
  }

  #isProtected(name: BlockName): boolean {
    if (this.nodes.get(name)!.locks > 0) return true;
    return this.#children(name).some((child) => this.#isProtected(child));
  }

  #children(name: BlockName): BlockName[] {
    return [...this.nodes]
      .filter(([n, { linked }]) => linked && parentOf(n) === name)
      .map(([n]) => n);
  }

  #parent(name: BlockName): BlockName | null {
    return this.nodes.get(name)!.linked ? parentOf(name) : null;
  }

  #path(name: BlockName): BlockName[] {
    const parent = this.#parent(name);
    return parent === null ? [name] : [name, ...this.#path(parent)];
  }

  #lock(name: BlockName): void {
    this.nodes.get(name)!.locks++;
    this.order = this.order.filter((other) => !this.#path(name).includes(other));
  }

  /** Blocks that become unprotected enter the order as the newest, the deepest first. */
  #unlock(name: BlockName): void {
    this.nodes.get(name)!.locks--;
    for (const step of this.#path(name)) {
      if (this.#isProtected(step)) break;
      if (this.nodes.get(step)!.resident) this.order.push(step);
    }
    this.#vanish(name);
  }

  /** Removes an unreferenced node, and then ancestors that only it referenced. */
  #vanish(name: BlockName): void {
    const { resident, writing, locks } = this.nodes.get(name)!;
    if (resident || writing || locks > 0 || this.#children(name).length > 0) return;
    const parent = this.#parent(name);
    this.nodes.delete(name);
    if (parent !== null) this.#vanish(parent);
  }

  #touch(names: readonly BlockName[]): void {
    for (const name of names.toReversed()) {
      for (const step of this.#path(name)) {
        if (!this.order.includes(step)) continue;
        this.order = [...this.order.filter((other) => other !== step), step];
      }
    }
  }

  /** Whether a slot is available, after evicting the oldest block if allowed. */
  #takeSlot(mayEvict: boolean, mayRelieve = true): boolean {
    if (this.free === 0 && mayEvict && mayRelieve) this.#relieve();
    if (this.free === 0 && mayEvict && this.order.length > 0) {
      const victim = this.order.shift()!;
      this.nodes.get(victim)!.resident = false;
      this.free++;
      this.#vanish(victim);
    }
    if (this.free === 0) return false;
    this.free--;
    return true;
  }

  /** If no block is evictable, ends the oldest sessions until one is. */
  #relieve(): void {
    for (const [key, name] of [...this.sessions]) {
      if (this.order.length > 0) return;
      this.sessions.delete(key);
      this.#unlock(name);
    }
  }

  reserve(engine: ModelEngine, names: readonly BlockName[]): OutcomeName[] {
    const known: BlockName[] = [];
    const frame = { full: false };
    const outcomes = names.map((name) => {
      const node = this.nodes.get(name);
      if (node !== undefined && node.namespace !== engine.namespace) return "full";
      if (node?.writing) return "pending";
      if (!node?.resident) return this.#reserveNew(engine, name, frame);
      this.#lock(name);
      known.push(name);
      return "present";
    });
    for (const name of known.toReversed()) this.#unlock(name);
    this.#touch(known);
    return outcomes;
  }

  #reserveNew(engine: ModelEngine, name: BlockName, frame: { full: boolean }): OutcomeName {
    const { namespace } = engine;
    const parent = parentOf(name);
    const parentNode = parent === null ? undefined : this.nodes.get(parent);
    const isFound =
      parentNode?.namespace === namespace && (parentNode.resident || parentNode.writing);
    if (isFound) this.#lock(parent!);
    const reachable = parent === null || isFound;
    let outcome: OutcomeName = "full";
    if (!frame.full && this.#takeSlot(reachable)) {
      if (parentNode !== undefined && parentNode.namespace !== namespace) this.free++;
      else outcome = this.#insert(engine, name);
    } else if (reachable) frame.full = true;
    if (isFound) this.#unlock(parent!);
    return outcome;
  }

  /** Inserts the node and links it to its parent. */
  #enter(namespace: number, name: BlockName): Node {
    const parent = parentOf(name);
    const ghost = { namespace, linked: false, resident: false, writing: false, locks: 0 };
    if (parent !== null && !this.nodes.has(parent)) this.nodes.set(parent, { ...ghost });
    const node = this.nodes.get(name) ?? { ...ghost };
    this.nodes.set(name, node);
    node.linked = parent !== null;
    return node;
  }

  #insert(engine: ModelEngine, name: BlockName): OutcomeName {
    this.#enter(engine.namespace, name).writing = true;
    this.#lock(name);
    engine.holds.set(name, { writing: true, reads: 0 });
    return "ok";
  }

  /** `right[i]`: whether the i-th given checksum matches its bytes. */
  commit(engine: ModelEngine, names: readonly BlockName[], right: boolean[]): OutcomeName[] {
    const stored: BlockName[] = [];
    const outcomes = names.map((name, i): OutcomeName => {
      if (!engine.holds.get(name)?.writing) return "stale";
      if (!right[i]) {
        this.#giveUp(engine, name);
        this.free++;
        return "corrupt";
      }
      engine.holds.delete(name);
      Object.assign(this.nodes.get(name)!, { resident: true, writing: false });
      stored.push(name);
      return "ok";
    });
    for (const name of stored.toReversed()) this.#unlock(name);
    this.#touch(stored);
    return outcomes;
  }

  #giveUp(engine: ModelEngine, name: BlockName): void {
    engine.holds.delete(name);
    this.nodes.get(name)!.writing = false;
    this.#unlock(name);
  }

  abort(engine: ModelEngine, names: readonly BlockName[]): OutcomeName[] {
    return names.map((name) => {
      if (!engine.holds.get(name)?.writing) return "stale";
      this.#giveUp(engine, name);
      this.free++;
      return "ok";
    });
  }

  acquire(engine: ModelEngine, names: readonly BlockName[], stopAtMiss: boolean): OutcomeName[] {
    let skip = false;
    return names.map((name) => {
      if (skip) return "skipped";
      if (this.isResident(name, engine.namespace)) {
        this.#lock(name);
        const hold = engine.holds.get(name) ?? { writing: false, reads: 0 };
        hold.reads++;
        engine.holds.set(name, hold);
        return "ok";
      }
      skip = stopAtMiss;
      return "miss";
    });
  }

  release(engine: ModelEngine, names: readonly BlockName[]): OutcomeName[] {
    const release = (name: BlockName): OutcomeName => {
      const hold = engine.holds.get(name);
      if (hold === undefined || hold.reads === 0) return "stale";
      if (--hold.reads === 0) engine.holds.delete(name);
      this.#unlock(name);
      return "ok";
    };
    return names.toReversed().map(release).toReversed();
  }

  sessionCommit(engine: ModelEngine, session: bigint, name: BlockName): OutcomeName {
    if (!this.isResident(name, engine.namespace)) return "miss";
    const key = `${engine.namespace}/${session}`;
    const old = this.sessions.get(key);
    const isBehind = old !== undefined && this.#path(old).includes(name);
    const deepest = isBehind ? old : name;
    this.#lock(deepest);
    this.sessions.delete(key);
    this.sessions.set(key, deepest);
    if (old !== undefined) this.#unlock(old);
    return "ok";
  }

  sessionRelease(engine: ModelEngine, session: bigint): OutcomeName {
    const key = `${engine.namespace}/${session}`;
    const name = this.sessions.get(key);
    if (name === undefined) return "miss";
    this.sessions.delete(key);
    this.#unlock(name);
    return "ok";
  }

  /** Reserves room for a block of namespace 1 from a peer. */
  land(name: BlockName): ModelLanding | "present" | "full" {
    const node = this.nodes.get(name);
    if (node !== undefined && node.namespace !== 1) return "full";
    if (node?.resident) return "present";
    const { size } = this.incoming;
    if (size > 0 && size + 1 > this.#slots / 2) return "full";
    if (!this.#takeSlot(true, false)) return "full";
    const landing = { name, removed: false };
    this.incoming.add(landing);
    return landing;
  }

  /** `right`: whether the received block is the requested one. An `ok` locks it until `unlock`. */
  commitLanding(landing: ModelLanding, right: boolean): "ok" | "corrupt" | "unwanted" {
    const { name, removed } = landing;
    this.incoming.delete(landing);
    this.free++;
    if (!right) return "corrupt";
    const node = this.nodes.get(name);
    if (node !== undefined && node.namespace !== 1) return "unwanted";
    if (!node?.resident) {
      if (removed || node?.writing) return "unwanted";
      const parent = parentOf(name);
      if (parent !== null && (this.nodes.get(parent)?.namespace ?? 1) !== 1) return "unwanted";
      this.free--;
      this.#enter(1, name).resident = true;
    }
    this.#lock(name);
    return "ok";
  }

  abandonLanding(landing: ModelLanding): void {
    this.incoming.delete(landing);
    this.free++;
  }

  /** Locks a block for a peer until `unlock`. */
  lend(name: BlockName): boolean {
    if (!this.isResident(name, 1)) return false;
    this.#lock(name);
    return true;
  }

  /** Releases a received or served block. */
  unlock(name: BlockName): void {
    this.#unlock(name);
  }

  purge(name: BlockName): "done" | "missing" | "held" {
    for (const landing of this.incoming) if (landing.name === name) landing.removed = true;
    const node = this.nodes.get(name);
    if (node === undefined) return "missing";
    if (node.locks > 0) return "held";
    if (!node.resident) return "missing";
    if (this.#isProtected(name)) return "held";
    this.#drop(name);
    return "done";
  }

  /** Drops the order's next victim. */
  dropOne(): boolean {
    const victim = this.order[0];
    if (victim !== undefined) this.#drop(victim);
    return victim !== undefined;
  }

  #drop(name: BlockName): void {
    this.order = this.order.filter((other) => other !== name);
    this.nodes.get(name)!.resident = false;
    this.free++;
    this.#vanish(name);
  }

  abandon(engine: ModelEngine): void {
    for (const [name, { writing }] of [...engine.holds]) {
      if (!writing) continue;
      this.#giveUp(engine, name);
      engine.quarantined++;
    }
  }

  die(engine: ModelEngine): void {
    this.free += engine.quarantined;
    engine.quarantined = 0;
    for (const [name, hold] of [...engine.holds].toReversed()) {
      for (; hold.reads > 0; hold.reads--) this.#unlock(name);
    }
    engine.holds.clear();
  }
}
