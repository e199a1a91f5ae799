"""BibTeX of the papers behind the pieces."""

from __future__ import annotations

from headway.recipes import Recipe

REFERENCES: dict[str, dict[str, str]] = {
    "mcmahan2017fedavg": {
        "type": "inproceedings",
        "title": "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "author": "McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
        'Ag{\\"u}era y Arcas, Blaise',
        "booktitle": "International Conference on Artificial Intelligence and Statistics (AISTATS)",
        "year": "2017",
    },
    "li2020fedprox": {
        "type": "inproceedings",
        "title": "Federated Optimization in Heterogeneous Networks",
        "author": "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and "
        "Smith, Virginia",
        "booktitle": "Proceedings of Machine Learning and Systems (MLSys)",
        "year": "2020",
    },
    "karimireddy2020scaffold": {
        "type": "inproceedings",
        "title": "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        "author": "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and "
        "Stich, Sebastian and Suresh, Ananda Theertha",
        "booktitle": "International Conference on Machine Learning (ICML)",
        "year": "2020",
    },
    "hsu2019fedavgm": {
        "type": "article",
        "title": "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        "author": "Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
        "journal": "arXiv preprint arXiv:1909.06335",
        "year": "2019",
    },
    "kim2023fedfn": {
        "type": "article",
        "title": "{FedFN}: Feature Normalization for Alleviating Data Heterogeneity Problem in Federated Learning",
        "author": "Kim, Seongyoon and Lee, Gihun and Oh, Jaehoon and Yun, Se-Young",
        "journal": "arXiv preprint arXiv:2311.13267",
        "year": "2023",
    },
    "oh2022fedbabu": {
        "type": "inproceedings",
        "title": "{FedBABU}: Towards Enhanced Representation for Federated Image Classification",
        "author": "Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young",
        "booktitle": "International Conference on Learning Representations (ICLR)",
        "year": "2022",
    },
    "huang2023etf": {
        "type": "article",
        "title": "Neural Collapse Inspired Federated Learning with Non-iid Data",
        "author": "Huang, Chenxi and Xie, Liang and Yang, Yibo and Wang, Wenxiao and Lin, Binbin and Cai, Deng",
        "journal": "arXiv preprint arXiv:2303.16066",
        "year": "2023",
    },
    "li2023fedetf": {
        "type": "inproceedings",
        "title": "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and "
        "Fixed Classifier",
        "author": "Li, Zexi and Shang, Xinyi and He, Rui and Lin, Tao and Wu, Chao",
        "booktitle": "IEEE/CVF International Conference on Computer Vision (ICCV)",
        "year": "2023",
    },
    "li2021moon": {
        "type": "inproceedings",
        "title": "Model-Contrastive Federated Learning",
        "author": "Li, Qinbin and He, Bingsheng and Song, Dawn",
        "booktitle": "IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
        "year": "2021",
    },
    "arivazhagan2019fedper": {
        "type": "article",
        "title": "Federated Learning with Personalization Layers",
        "author": "Arivazhagan, Manoj Ghuhan and Aggarwal, Vinay and Singh, Aaditya Kumar and Choudhary, Sunav",
        "journal": "arXiv preprint arXiv:1912.00818",
        "year": "2019",
    },
    "collins2021fedrep": {
        "type": "inproceedings",
        "title": "Exploiting Shared Representations for Personalized Federated Learning",
        "author": "Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay",
        "booktitle": "International Conference on Machine Learning (ICML)",
        "year": "2021",
    },
    "liu2023fedtc": {
        "type": "article",
        "title": "{FedTC}: A Personalized Federated Learning Method with Two Classifiers",
        "author": "Liu, Yang and Wang, Jiabo and Liu, Qinbo and Gheisari, Mehdi and Xu, Wanyin and Jiang, Zoe L. "
        "and Zhang, Jiajia",
        "journal": "Computers, Materials \\& Continua",
        "year": "2023",
    },
    "luo2021ccvr": {
        "type": "inproceedings",
        "title": "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-{IID} Data",
        "author": "Luo, Mi and Chen, Fei and Hu, Dapeng and Zhang, Yifan and Liang, Jian and Feng, Jiashi",
        "booktitle": "Advances in Neural Information Processing Systems (NeurIPS)",
        "year": "2021",
    },
}


def bibtex(recipe: Recipe) -> str:
    """The entries of a recipe's pieces, each once, in the order of the pieces."""
    keys = dict.fromkeys(p.paper for p in recipe.pieces)
    return "\n\n".join(entry(key) for key in keys)


def entry(key: str) -> str:
    fields = dict(REFERENCES[key])
    kind = fields.pop("type")
    body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@{kind}{{{key},\n{body}\n}}"
