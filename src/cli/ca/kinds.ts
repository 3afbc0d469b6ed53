import { isClusterName, isWorkerId, type WorkerId } from "../../core/index.ts";
import type { Kind } from "../kinds.ts";

export const clusterKind: Kind<string> = {
  placeholder: "NAME",
  read(given) {
    if (isClusterName(given)) return { ok: true, value: given };
    const why = "wants 1 to 63 small letters, digits, . - and _, the first a letter or digit";
    return { ok: false, why };
  },
  show: (value) => value,
};

export const workerKind: Kind<WorkerId> = {
  placeholder: "ID",
  read(given) {
    if (isWorkerId(given)) return { ok: true, value: given };
    const why = "wants 1 to 64 letters, digits, - and _, the first a letter or digit";
    return { ok: false, why };
  },
  show: (value) => value,
};
