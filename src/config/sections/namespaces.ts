import { pathKind } from "../kinds.ts";
import { optional, section } from "../spec.ts";

const PATH_BYTES_MAX = 4095;

const keyDir = optional({
  key: "key_dir",
  kind: pathKind({ bytesMax: PATH_BYTES_MAX, example: "/etc/hearth/keys" }),
  reload: false,
  doc:
    "Folder of namespace keys: each regular file is one secret of 16 to 4096 bytes, which nobody " +
    "but its owner may read (mode 0600). With the key of a namespace the agent checks the MAC of " +
    "each block that an engine, a peer or SSD gives it. Without it the agent keeps the MAC, and " +
    "the engines, which have the key, check it. Names that begin with a dot are left out.",
  example: "/etc/hearth/keys",
});

export const namespacesSection = section("Keys of namespaces, for agents that check MACs.", {
  keyDir,
});
