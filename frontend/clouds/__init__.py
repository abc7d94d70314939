"""The endpoints of cloud services, SageMaker's and Vertex AI's, on the road."""
