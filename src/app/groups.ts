import { readFileSync } from "node:fs";
import { HearthError } from "../core/index.ts";

/**
 * The number of a group given by name or number. Throws CONFIG_INVALID where the host has no such
 * group.
 */
export function groupNumber(
  group: string,
  key = "engine.socket_group",
  groupFile = "/etc/group",
): number {
  if (/^[0-9]+$/.test(group)) return Number(group);
  const line = readFileSync(groupFile, "utf8")
    .split("\n")
    .find((entry) => entry.startsWith(`${group}:`));
  const number = line?.split(":")[2];
  if (number !== undefined) return Number(number);
  throw new HearthError("CONFIG_INVALID", `${key}: there is no group "${group}"`, {
    fix: `create it with groupadd ${group}, or name another`,
  });
}
