/** Where commands for all workers are published. */
export const BROADCAST_SUBJECT = "kv-control-broadcast";
/** How discovery calls every agent. */
export const SERVICE_NAME = "hearth-agent";
/** Says where the receipt goes of a command that a stream kept, which used up the reply subject. */
export const REPLY_HEADER = "Hearth-Reply";
