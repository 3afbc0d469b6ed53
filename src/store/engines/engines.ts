import type { NodeId, TurnBudget } from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";
import { Announcements, type EngineAnnouncements } from "./announcements.ts";
import { ClaimBook, type ClaimLimits, EngineClaims } from "./claims.ts";
import { Lookups } from "./lookups.ts";

/** Connections that are one engine: a scheduler and its workers. */
export class EngineGroup {
  /** User of all its processes. */
  readonly uid: number;
  readonly claims: EngineClaims;
  readonly announced: EngineAnnouncements;
  readonly members = new Set<EngineMember>();

  constructor(engines: Engines, uid: number) {
    this.uid = uid;
    this.claims = new EngineClaims(engines.store, engines.book);
    this.announced = engines.announcements.open();
  }
}

/** One connection, and the engine that it is part of. */
export class EngineMember {
  readonly #engines: Engines;
  /** Of a connection that is of no engine: what it brings up while it looks up. */
  readonly #own: EngineClaims;
  #group: EngineGroup | null = null;
  #isOver = false;

  constructor(engines: Engines) {
    this.#engines = engines;
    this.#own = new EngineClaims(engines.store, engines.book);
  }

  get group(): EngineGroup | null {
    return this.#group;
  }

  get claims(): EngineClaims {
    return this.#group?.claims ?? this.#own;
  }

  /** `id`: 16 bytes in hex. Members of the engine now; or why the connection cannot be one. */
  join(id: string, uid: number): number | "joined" | "foreign" {
    if (this.#group !== null || this.#isOver) return "joined";
    const group = this.#engines.groupOf(id, uid);
    if (group.uid !== uid) return "foreign";
    group.members.add(this);
    this.#group = group;
    return group.members.size;
  }

  /** A connection of the engine has acquired the block. */
  taken(node: NodeId): void {
    this.#group?.claims.taken(node);
  }

  /** The connection is over; with the last one goes everything that was kept for the engine. */
  leave(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#own.endAll();
    const group = this.#group;
    if (group === null) return;
    group.members.delete(this);
    if (group.members.size === 0) this.#engines.end(group);
  }
}

/** The engines of this host: what is kept in RAM for them, and what they compute. */
export class Engines {
  readonly store: TieredStore;
  readonly book: ClaimBook;
  readonly announcements: Announcements;
  readonly lookups: Lookups;
  readonly #groups = new Map<string, EngineGroup>();

  constructor(store: TieredStore, limits: ClaimLimits, turns: TurnBudget) {
    this.store = store;
    this.book = new ClaimBook(limits);
    this.announcements = new Announcements(store.clock);
    this.lookups = new Lookups(store.clock, turns);
  }

  get size(): number {
    return this.#groups.size;
  }

  open(): EngineMember {
    return new EngineMember(this);
  }

  groupOf(id: string, uid: number): EngineGroup {
    const known = this.#groups.get(id);
    if (known !== undefined) return known;
    const group = new EngineGroup(this, uid);
    this.#groups.set(id, group);
    return group;
  }

  end(group: EngineGroup): void {
    for (const [id, known] of this.#groups) if (known === group) this.#groups.delete(id);
    group.claims.endAll();
    group.announced.clear();
  }

  /** A block came to a tier. Called in the middle of a change to the table. */
  came(node: NodeId, tier: Tier): void {
    if (tier !== Tier.ram) return;
    this.announcements.landed(this.store.table, node);
    this.lookups.arrived();
  }
}
