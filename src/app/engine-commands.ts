import {
  type ControlPlane,
  encodeReceipt,
  JSON_TYPE,
  type Role,
  type Sender,
} from "../control/index.ts";
import type { CommandPort } from "../engine/index.ts";

/** Issuer of commands of an engine that has no name. */
const ISSUER = "engine";

/** Commands that engines send over their own connections, with the role of the configuration. */
export function engineCommands(plane: () => ControlPlane, role: () => Role): CommandPort {
  return {
    async submit(json, { name, source }, bytesMax) {
      const sender: Sender = {
        ...{ via: "local", from: "engine socket", name: name || ISSUER },
        ...{ role: role(), roleKey: "engine.command_role", broadcast: false },
        // No token has this name: an engine must not fence a router by claiming its issuer.
        account: `engine socket ${name}`,
      };
      const receipt = await plane().submit(json, JSON_TYPE, sender, { source });
      const encode = () => encodeReceipt(receipt, JSON_TYPE, bytesMax);
      return (await source.call(encode)) ?? encode();
    },
  };
}
