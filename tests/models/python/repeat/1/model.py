import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends each element of IN as a response of its own, after the delay in DELAY."""

    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])

        if not pb_utils.using_decoupled_model_transaction_policy(model_config):
            raise pb_utils.TritonModelException(
                f"""the model `{args["model_name"]}` can generate any number of responses per request,
                enable decoupled transaction policy in model configuration to serve this model"""
            )

        out_config = pb_utils.get_output_config_by_name(model_config, "OUT")
        idx_config = pb_utils.get_output_config_by_name(model_config, "IDX")
        self.out_dtype = pb_utils.triton_string_to_numpy(out_config["data_type"])
        self.idx_dtype = pb_utils.triton_string_to_numpy(idx_config["data_type"])

        # To keep track of response threads so that we can delay the finalizing of the model until they are done.
        self.inflight_thread_count = 0
        self.inflight_thread_count_lck = threading.Lock()

    def execute(self, requests):
        for request in requests:
            self.process_request(request)
        # A decoupled model returns None: the responses come from elsewhere.
        return None

    def process_request(self, request):
        thread = threading.Thread(
            target=self.response_thread,
            args=(
                request.get_response_sender(),
                pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().copy(),
                pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy().copy(),
            ),
        )
        thread.daemon = True

        with self.inflight_thread_count_lck:
            self.inflight_thread_count += 1

        thread.start()

        wait = pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy()
        time.sleep(wait[0] / 1000)  # as a client asked for: how long `execute` is busy

    def response_thread(self, response_sender, in_values, delay_values):
        for index, (in_value, delay_value) in enumerate(zip(in_values, delay_values, strict=True)):
            time.sleep(delay_value / 1000)  # and after what time each response comes
            out_output = pb_utils.Tensor("OUT", np.array([in_value], self.out_dtype))
            idx_output = pb_utils.Tensor("IDX", np.array([index], self.idx_dtype))
            response_sender.send(pb_utils.InferenceResponse(output_tensors=[idx_output, out_output]))

        # There is nothing left to say: we must close the sender.
        response_sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        with self.inflight_thread_count_lck:
            self.inflight_thread_count -= 1

    def finalize(self):
        inflight_threads = True
        while inflight_threads:
            with self.inflight_thread_count_lck:
                inflight_threads = self.inflight_thread_count != 0
            if inflight_threads:
                time.sleep(0.1)  # as Triton's example does; an idle instance has no threads to wait for
