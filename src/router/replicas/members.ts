import type { ResidencySource } from "../../observability/activity/index.ts";
import type { SeenPicture } from "./announcement.ts";
import type { RouterId } from "./router-id.ts";

/** Another router, as it said of itself. */
export interface Member {
  readonly router: RouterId;
  everyMs: number;
  heardMs: number;
  /** It was only heard at work so far. */
  isNew: boolean;
  /** Announcements in a row whose requests were not those counted here. */
  differs: number;
  /** So many of them are waited for before its list is asked: more each time that did not help. */
  patience: number;
  isAsked: boolean;
  readonly pictures: Map<string, SeenPicture>;
}

/** Routers of one cluster; what more say is passed over. */
export const MEMBERS_MAX = 64;
/** Announcements that may differ in a row, by what is under way. */
export const DIFFERS_MIN = 2;
const PICTURES_MAX = 65_536;

export class Members {
  readonly #members = new Map<RouterId, Member>();

  get all(): readonly Member[] {
    return [...this.#members.values()];
  }

  get(router: RouterId): Member | null {
    return this.#members.get(router) ?? null;
  }

  /** Null: there are too many already. `everyMs`: as long as it has not said so itself. */
  heard(router: RouterId, everyMs: number, nowMs: number): Member | null {
    const known = this.#members.get(router);
    if (known !== undefined) {
      known.heardMs = nowMs;
      return known;
    }
    if (this.#members.size >= MEMBERS_MAX) return null;
    const of = { router, everyMs, heardMs: nowMs, isNew: true, differs: 0, isAsked: false };
    const patience = DIFFERS_MIN;
    const member = { ...of, patience, pictures: new Map<string, SeenPicture>() };
    this.#members.set(router, member);
    return member;
  }

  delete(router: RouterId): void {
    this.#members.delete(router);
  }

  seen({ pictures }: Member, seen: readonly SeenPicture[]): void {
    for (const one of seen) {
      if (pictures.size < PICTURES_MAX) pictures.set(nameOf(one.source), one);
    }
  }

  /** The router whose picture of this run is the latest. */
  holderOf(source: ResidencySource): RouterId | null {
    let best: { router: RouterId; sequence: number } | null = null;
    for (const { router, pictures } of this.#members.values()) {
      const seen = pictures.get(nameOf(source));
      if (seen?.source.incarnation !== source.incarnation) continue;
      if (best === null || seen.sequence > best.sequence) best = { router, ...seen };
    }
    return best?.router ?? null;
  }
}

function nameOf({ worker, rank }: ResidencySource): string {
  return `${worker}/${rank}`;
}
