// The stream that sessions share: frames of commands one way, frames of replies the other, in any order.

const KIND = "COMMAND_KIND_";
const OK = "REPLY_CODE_OK_UNSPECIFIED";

// An error as the contract tells it: of a unary call in the trailing metadata, of a command in its reply.
export function failure(definition, error) {
  const [told] = error.metadata?.get("gymhost-error-bin") ?? [];
  return told ? new Error(definition["gymhost.v1.Error"].deserialize(told).message) : error;
}

export class Stream {
  static async open(client, metadata, definition, limit) {
    const stream = new Stream(client.Interact(metadata), definition, limit);
    try {
      const hello = { protocol_minor: 1, client: "gymhost-node-example" };
      const welcome = await stream.command("HELLO", "Hello", hello, "Welcome");
      // Sessions outlive the last sign of their client by the lease alone.
      stream.beat = setInterval(
        () => stream.command("HEARTBEAT", null, null, null).catch(() => {}),
        welcome.heartbeat_ms,
      );
      return stream;
    } catch (error) {
      stream.close();
      throw error;
    }
  }

  constructor(call, definition, limit) {
    this.call = call;
    this.definition = definition;
    this.limit = limit;
    this.waiting = new Map(); // what waits for a reply, by lane and number
    this.sequence = 0; // of commands that are not numbered on a lane
    call.on("data", ({ replies }) => replies.forEach((reply) => this.hear(reply)));
    call.on("error", (error) => this.fail(failure(definition, error)));
    call.on("end", () => this.fail(new Error("the server ended the stream")));
  }

  async create(request) {
    const made = await this.command("CREATE", "CreateSessionRequest", request, "CreateSessionResponse");
    return new Session(this, made.lanes[0]);
  }

  close() {
    clearInterval(this.beat);
    this.call.end();
    this.call.cancel();
  }

  // Sends a command, and waits for its reply. One that is not numbered on its lane is answered on lane 0.
  command(kind, type, message, answer, lane = "0", sequence = null) {
    const numbered = sequence !== null;
    const number = numbered ? sequence : ++this.sequence;
    const payload = type ? this.definition[`gymhost.v1.${type}`].serialize(message) : Buffer.alloc(0);
    return new Promise((resolve, reject) => {
      const key = `${numbered ? lane : "0"}/${number}`;
      const late = setTimeout(() => {
        this.waiting.delete(key);
        reject(new Error(`no answer to ${kind} in ${this.limit} ms`));
      }, this.limit);
      this.waiting.set(key, { answer, resolve, reject, late });
      this.call.write({
        commands: [{ lane, sequence: number, kind: KIND + kind, time_left_ms: this.limit, payload }],
      });
    });
  }

  hear({ lane, sequence, code, payload }) {
    const key = `${lane}/${sequence}`;
    const waiting = this.waiting.get(key);
    if (!waiting) return; // a notice
    this.waiting.delete(key);
    clearTimeout(waiting.late);
    const type = this.definition[`gymhost.v1.${code === OK ? waiting.answer : "Error"}`];
    if (code === OK) waiting.resolve(type && type.deserialize(payload));
    else waiting.reject(new Error(`${code}: ${type.deserialize(payload).message}`));
  }

  fail(error) {
    for (const { reject, late } of this.waiting.values()) {
      clearTimeout(late);
      reject(error);
    }
    this.waiting.clear();
  }
}

// A session on a lane, whose commands are numbered from 1.
class Session {
  constructor(stream, lane) {
    this.stream = stream;
    this.lane = lane;
    this.sequence = 0;
  }

  reset(command) {
    return this.stream.command("RESET", "ResetCommand", command, "ResetResult", this.lane, ++this.sequence);
  }

  callTool(command) {
    return this.stream.command("CALL_TOOL", "CallToolCommand", command, "CallToolResult", this.lane, ++this.sequence);
  }

  close() {
    return this.stream.command("CLOSE", null, null, null, this.lane);
  }
}
