import { formatListen } from "../listen-address.ts";
import { API_CHECKS, NATS_CHECKS } from "../service-checks.ts";
import { type SumCheck, unless } from "../sum-check.ts";
import type { RouterConfig } from "./schema.ts";

/** Rules over several keys of a router's file. */
export const ROUTER_CHECKS: readonly SumCheck<RouterConfig>[] = [
  ...NATS_CHECKS,
  ...API_CHECKS,
  {
    keys: ["events.stale_beats", "events.gone_beats"],
    find: ({ events: { staleBeats, goneBeats } }) =>
      unless(
        staleBeats < goneBeats,
        `stale_beats ${staleBeats} is not below gone_beats ${goneBeats}`,
        `use less than ${goneBeats}, or more gone_beats`,
      ),
  },
  {
    keys: ["replicas.sync", "nats.url"],
    find: ({ replicas, nats }) =>
      unless(
        !replicas.sync || nats.url !== null,
        "replicas speak over NATS, and nats.url is not set",
        "write url below [nats], or remove it",
      ),
  },
  {
    keys: ["router.id"],
    find: ({ workers }) => {
      const unnamed = workers.find(({ model, url }) => model === null && url === null);
      if (unnamed === undefined) return null;
      const instead = "name its model, or the url of an engine that says it";
      return { what: "has neither model nor url", instead, at: ["workers", unnamed.name] };
    },
  },
  {
    keys: ["proxy.body_limit", "proxy.body_budget"],
    find: ({ proxy: { bodyBytesMax, bodyBudgetBytes } }) =>
      unless(
        bodyBytesMax <= bodyBudgetBytes,
        `one body of ${bodyBytesMax} bytes is more than body_budget has for all of them`,
        "lower body_limit, or raise body_budget",
      ),
  },
  {
    keys: ["nats.command_proof", "nats.sign_nkey_file"],
    find: ({ nats: { commandProof, signNkeyFile } }) =>
      unless(
        commandProof !== "signature" || signNkeyFile !== null,
        "commands are to be signed, and sign_nkey_file is not set",
        'write sign_nkey_file below [nats], or use command_proof = "none"',
      ),
  },
  {
    keys: ["proxy.listen", "api.listen"],
    find: ({ proxy, api }) =>
      unless(
        proxy.listen === "off" ||
          proxy.listen.port === 0 ||
          formatListen(proxy.listen) !== formatListen(api.listen),
        `${formatListen(api.listen)} is where api.listen is, too`,
        "give the proxy a port of its own",
      ),
  },
];
